// The running program: how it is started again, and where its own files are.
#pragma once

#include <string>
#include <vector>

namespace strata {

// Path of the running program, good for starting it again even when its file was replaced since;
// of one in a bundle, as long as the bundle's folder is there.
std::string OwnProgram();

// The folder of the bundle (scripts/package) that this process runs from: lib/ has its libraries,
// lib/ggml its plug-ins, lib/python its modules, share/strata its model, and nothing of the
// system's is used in their place. Empty: it does not run from one.
const std::string& BundleFolder();

// Paths of the shared libraries that this process has loaded, sorted.
std::vector<std::string> LoadedLibraries();

}  // namespace strata
