// Keeps the threads that run gRPC's callbacks, has them wait for work and nothing else, and keeps
// their locks cheap.
#pragma once

namespace strata {

// gRPC 1.51 runs the callbacks of all channels and servers on a few threads, which have two habits:
// - They are joined when the last channel or server that uses them goes. Where that happens on one
//   of them (a call that owns its channel and deletes itself in OnDone(), or the last copy of a
//   callback's captures) a thread joins itself and the process aborts. So one channel that leads
//   nowhere stays for as long as the process.
// - One that had nothing to do for 1 s sleeps for 100 ms, each time. When all of them do, whatever
//   arrives waits for them; and an idle process wakes for nothing. So they get a limit without an
//   end (grpc_completion_queue_next() of this program, which the dynamic linker finds first). Where
//   it finds gRPC's own (macOS), a call on that channel, which fails at once, is made several times
//   a second: whoever got it last is awake.
// And it locks many of Abseil's mutexes for each message. Abseil as it is packaged (Debian
// builds it without NDEBUG) searches for deadlocks at every lock: that is switched off, for all
// mutexes of the process. Tests without gRPC keep it.
// Any thread; the first call does it.
void KeepGrpcThreads();

// Whether those threads wait without a limit. Soon after the first call, where it can be had.
bool GrpcThreadsWaitForWork();

// And what is linked with this has another gpr_cv_wait(), by which gRPC's timers wait. gRPC's own
// waits for a moment of the wall clock: where that is put back by hours, no deadline, keepalive or
// new try to connect of the process comes in these hours.

}  // namespace strata
