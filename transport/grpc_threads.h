// Keeps the threads that run gRPC's callbacks, keeps them awake, and keeps their locks cheap.
#pragma once

namespace strata {

// gRPC 1.51 runs the callbacks of all channels and servers on a few threads, which have two habits:
// - They are joined when the last channel or server that uses them goes. Where that happens on one
//   of them (a call that owns its channel and deletes itself in OnDone(), or the last copy of a
//   callback's captures) a thread joins itself and the process aborts. So one channel that leads
//   nowhere stays for as long as the process.
// - One that had nothing to do for 1 s sleeps for 100 ms. When all of them do, whatever arrives
//   waits for them. So a call on that channel, which fails at once, is made several times a second:
//   whoever got it last is awake.
// And it locks many of Abseil's mutexes for each message. Abseil as it is packaged (Debian
// builds it without NDEBUG) searches for deadlocks at every lock: that is switched off, for all
// mutexes of the process. Tests without gRPC keep it.
// Any thread; the first call does it.
void KeepGrpcThreads();

}  // namespace strata
