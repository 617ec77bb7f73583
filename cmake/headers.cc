// CMake gives a precompiled header to a target that has a source.
