// bin/strata of a bundle (scripts/package): becomes the program lib/strata under the bundle's own
// loader and libraries, whatever libc the system has, or none. Linked statically for that reason.

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#ifndef STRATA_LOADER  // scripts/package names the processor's
#define STRATA_LOADER "ld-linux-x86-64.so.2"
#endif

int main(int argc, char** argv) {
  char self[PATH_MAX];
  const ssize_t bytes = readlink("/proc/self/exe", self, sizeof(self));
  if (bytes <= 0 || bytes == static_cast<ssize_t>(sizeof(self))) {
    fputs("strata: its own folder is not known: /proc is not mounted\n", stderr);
    return 127;
  }
  std::string folder(self, static_cast<size_t>(bytes));
  for (int levels = 0; levels < 2 && !folder.empty(); ++levels) folder.resize(folder.rfind('/'));
  // The loader gives these a meaning in a list of folders.
  if (folder.find_first_of(":;$") != std::string::npos) {
    fprintf(stderr, "strata: it cannot run from %s: a name on that path has a :, ; or $\n",
            folder.c_str());
    return 127;
  }
  const std::string libraries = folder + "/lib";
  const std::string loader = libraries + "/" STRATA_LOADER;
  const std::string program = libraries + "/strata";

  // Made for the system's libc, which the bundle does not use.
  unsetenv("LD_PRELOAD");
  unsetenv("LD_AUDIT");
  // The system's settings may name libraries of the system's, and its modules need them.
  setenv("OPENSSL_CONF", "/dev/null", /*overwrite=*/0);
  setenv("UCX_MODULE_DIR", (libraries + "/ucx").c_str(), /*overwrite=*/0);
  std::vector<const char*> args = {
      loader.c_str(), "--library-path", libraries.c_str(), "--argv0", argc > 0 ? argv[0] : "strata",
      program.c_str()};
  for (int i = 1; i < argc; ++i) args.push_back(argv[i]);
  args.push_back(nullptr);
  execv(loader.c_str(), const_cast<char* const*>(args.data()));
  fprintf(stderr, "strata: %s cannot be started (%s): unpack the bundle again\n", loader.c_str(),
          strerror(errno));
  return 127;
}
