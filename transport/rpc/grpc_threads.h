// Keeps the threads that run gRPC's callbacks alive, makes them wait for work without polling, and
// keeps their locks cheap.
#pragma once

namespace strata {

// gRPC 1.51 runs the callbacks of all channels and servers on a few threads, with two problems:
// - They are joined when the last channel or server that uses them is destroyed. Where that happens
//   on one of them (a call that owns its channel and deletes itself in OnDone(), or the last copy
//   of a callback's captures) a thread joins itself and the process aborts. So one channel that
//   leads nowhere stays for as long as the process.
// - A thread that had nothing to do for 1 s sleeps for 100 ms, each time. When all of them sleep,
//   new events wait for them; and an idle process wakes for nothing. So they wait without a limit
//   (grpc_completion_queue_next() of this program, which the dynamic linker finds first). Where it
//   finds gRPC's own (macOS), a call on that channel, which fails at once, is made several times a
//   second: the thread that handles it stays awake.
// gRPC also locks many of Abseil's mutexes for each message. Abseil as it is packaged (Debian
// builds it without NDEBUG) searches for deadlocks at every lock: that is switched off, for all
// mutexes of the process. Tests without gRPC keep it.
// Any thread; only the first call has an effect.
void KeepGrpcThreads();

// Whether those threads wait without a limit: true soon after the first call, on systems that allow
// it.
bool GrpcThreadsWaitForWork();

// A program linked with this also gets another gpr_cv_wait(), by which gRPC's timers wait. gRPC's
// own waits by the wall clock: where that is set back by hours, no deadline, keepalive or reconnect
// of the process happens in these hours.

}  // namespace strata
