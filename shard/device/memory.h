// The memory that this process has and may still allocate, and its release.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata {

// Memory this process has resident, bytes.
uint64_t ResidentBytes();

// Bytes that may be allocated without swapping: the system's available memory, or the rest below
// the limit of this process's control group, whichever is less.
uint64_t AvailableBytes();

// Drops the pages of mapped files from this process; pages that are read again come from the page
// cache. For weights that were copied out of the mapping.
void DropMappedPages(const std::vector<std::string>& paths);

// Returns freed memory to the system, where the C library keeps it, because planners count it. Any
// thread.
void ReleaseFreedMemory();
// Makes the C library return large blocks when they are freed, and keep little of the rest. For a
// process whose requests may be large; not for one that allocates such blocks at each step.
void KeepLittleFreedMemory();
// Makes ReleaseFreedMemory() cover memory that any thread has freed. Call once, in a process that
// loads stages, before it starts threads.
void UseOneHeap();

}  // namespace strata
