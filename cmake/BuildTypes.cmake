# What the presets choose from: warnings as errors, sanitizers, the linker.

option(STRATA_WERROR "Warnings are errors" OFF)
set(STRATA_SANITIZE "" CACHE STRING "address (with undefined) or thread")

if(STRATA_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # ABSL_GUARDED_BY and its kin are checked here; GCC does not know them.
  add_compile_options(-Wthread-safety)
endif()

if(STRATA_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(STRATA_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(STRATA_SANITIZE)
  message(FATAL_ERROR "STRATA_SANITIZE is '${STRATA_SANITIZE}', not 'address' or 'thread'")
endif()
if(STRATA_FUZZ)
  # Coverage in every object; the targets under tests/fuzz link libFuzzer's main on top.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

# mold links the test programs several times faster; the result is the same.
find_program(STRATA_MOLD mold)
if(STRATA_MOLD AND NOT APPLE)
  add_link_options(-fuse-ld=mold)
endif()
