// How much memory this process has and may still take, and what it gives back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata {

// Memory this process has resident, bytes.
uint64_t ResidentBytes();

// Bytes that may be allocated without swapping: what the system counts as available, or what is
// left below the limit of a control group that this process is in, whichever is less.
uint64_t AvailableBytes();

// Takes the pages of mapped files out of this process; what is read again comes back from the page
// cache. For weights that were copied out of the mapping and are not needed there any more.
void DropMappedPages(const std::vector<std::string>& paths);

// Gives what was freed back to the system, where the C library keeps it: others plan with it. Any
// thread.
void ReleaseFreedMemory();
// Large blocks go back as soon as they are freed, and of the rest little is kept. For a process
// whose requests may be large; one that takes such blocks at each step would take them anew each
// time.
void KeepLittleFreedMemory();
// Lets ReleaseFreedMemory() reach what any thread has freed. Once, before a process that loads
// stages starts threads.
void UseOneHeap();

}  // namespace strata
