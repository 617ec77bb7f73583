// Serves one stage: takes steps from the link before it, runs them on the compute thread, and sends
// activations to the next stage, or sampled tokens to the coordinator.
//
// Threads: links' threads put frames into the bounded inbox; one compute thread owns the stage and
// the samplers. A step's path: OnFrame → inbox → edits → Stage::Decode → (sampler) → next link.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"
#include "transport/base/clock.h"
#include "transport/link/link.h"

namespace strata {

// Steps that may wait in front of a stage; the credits its acceptor grants.
inline constexpr uint32_t kInboxStepsMax = 8;
// Places are released in groups of this many: a credit frame for each step would wake the sender's
// threads while they compute, and delay the stage's own computation.
inline constexpr uint32_t kInboxReleaseSteps = kInboxStepsMax / 2;

class StageServer {
 public:
  // `spec` says which stage of which plan this is; `clock` outlives the server. The compute thread
  // starts here and calls `load` first. Start() returns at once; `loaded` is called on the compute
  // thread with the outcome.
  using LoadFn = absl::AnyInvocable<absl::StatusOr<std::unique_ptr<Stage>>()>;
  using LoadedFn = absl::AnyInvocable<void(absl::StatusOr<Stage::Facts>) &&>;
  static std::unique_ptr<StageServer> Start(wire::StageSpec spec, Clock* clock, LoadFn load,
                                            LoadedFn loaded);

  // Closes both links, stops the compute thread after the step it is on, and frees the stage.
  virtual ~StageServer() = default;

  // Does the same for a caller that may not be the last owner. Blocks. REQUIRES: not on the compute
  // thread or a link's thread.
  virtual void Stop() = 0;
  // Does the same, but returns the stage with the contents of its slots; null where it is not
  // loaded. At most once. Blocks. REQUIRES: not on the compute thread or a link's thread.
  virtual std::unique_ptr<Stage> TakeStage() = 0;

  // Accepts a peer as the link before this stage. kAborted: another epoch; kUnavailable: not
  // loaded yet, another link is open, or the link after an earlier one has not ended yet;
  // kFailedPrecondition: another model, stage or n_embd. Any thread. After OK, SetIncoming()
  // follows, or AbandonIncoming() when the peer left before its link was open.
  struct Incoming {
    wire::Hello hello;
    Link::Receiver* receiver;
  };
  virtual absl::StatusOr<Incoming> Accept(const wire::Hello& peer) = 0;
  virtual void SetIncoming(std::unique_ptr<Link> link) = 0;
  virtual void AbandonIncoming() = 0;

  // The link to the next stage, dialled by the caller with outgoing_receiver(). Close and destroy
  // an older one with SetOutgoing(nullptr, "") before dialling.
  virtual wire::Hello OutgoingHello() const = 0;
  virtual Link::Receiver* outgoing_receiver() = 0;
  // `note` says, for people, why the link uses no other transport.
  virtual void SetOutgoing(std::unique_ptr<Link> link, std::string note) = 0;

  // Sets how activations are sent to the next stage, from the next step on. kInvalidArgument: rows
  // of this model cannot be sent so; kFailedPrecondition: not loaded. Any thread.
  virtual absl::Status SetActivations(const wire::ActivationRule& rule) = 0;
  virtual wire::ActivationRule activations() const = 0;

  // Calls `task` on the compute thread, between steps; with nullptr when the stage is unloaded
  // before its turn comes. kFailedPrecondition: not loaded; kResourceExhausted: too many tasks
  // wait. Any thread.
  using Task = absl::AnyInvocable<void(Stage*) &&>;
  virtual absl::Status Post(Task task) = 0;

  // Whether the load failed; the server does nothing then.
  virtual bool load_failed() const = 0;

  // How long the compute thread has been on its current step, without the time it waits for room at
  // the next stage; 0 when idle. Any thread.
  virtual uint32_t busy_ms() const = 0;
  virtual uint64_t steps_done() const = 0;
  // Counters since the stage was loaded; never decreasing. Any thread.
  struct Work {
    int64_t busy_us = 0;  // computing, including the current step
    uint64_t rows = 0;
    uint64_t bytes_in = 0;  // of frames over its links
    uint64_t bytes_out = 0;
    std::string link_wire;  // of the link to the next stage; empty: none is open
    std::string link_note;
  };
  virtual Work work() const = 0;
  // Of the loaded stage; null: it keeps none. Any thread.
  virtual std::shared_ptr<KvStore> kv_store() const = 0;

  virtual const wire::StageSpec& spec() const = 0;
};

}  // namespace strata
