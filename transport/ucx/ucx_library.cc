#include "transport/ucx/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

// The library's ABI version has always been 0; each parameter struct says which fields it has.
constexpr char kLibrary[] = "libucp.so.0";

UcxLibrary library;  // written once, by Load()

absl::Status Load() {
  // Never unloaded: UCX has threads, and holds callbacks of ours.
  void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return absl::UnavailableError(absl::StrCat("UCX cannot be loaded: ", dlerror()));
  }
#define STRATA_UCX_FIND(name)                                                                \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name));             \
  if (library.name == nullptr) {                                                             \
    return absl::UnavailableError(absl::StrCat(kLibrary, " of this machine has no " #name)); \
  }
  STRATA_UCX_FUNCTIONS(STRATA_UCX_FIND)
#undef STRATA_UCX_FIND
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadUcx() {
  static const absl::Status status = Load();
  return absl::Status(status.code(), status.message());
}

const UcxLibrary& Ucx() { return library; }

void DisableUcxMemoryHooks() { setenv("UCX_MEM_MMAP_HOOK_MODE", "none", /*replace=*/0); }

}  // namespace strata
