# Clang reads a precompiled header in a tenth of a second, and the headers in it take it half of the
# time of most sources. GCC gains little by one, so preset dev does without and sees to it that every
# file includes what it uses.

option(STRATA_PRECOMPILED_HEADERS "Read the headers that most sources include once (for clang)" OFF)

# strata_precompiled_headers(TARGET HEADER [LIBRARY…]): the target whose header others reuse.
function(strata_precompiled_headers target header)
  if(STRATA_PRECOMPILED_HEADERS)
    add_library(${target} OBJECT ${PROJECT_SOURCE_DIR}/cmake/headers.cc)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/precompile)
    target_link_libraries(${target} PRIVATE strata_options ${ARGN})
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${header})
  endif()
endfunction()

# strata_reuse_headers(OWNER TARGET…): what was precompiled for OWNER serves the targets too.
function(strata_reuse_headers owner)
  if(STRATA_PRECOMPILED_HEADERS)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM ${owner})
    endforeach()
  endif()
endfunction()
