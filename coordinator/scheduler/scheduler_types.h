// The scheduler's pipeline facts, policy and statistics.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/request/generation_request.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"
#include "shard/kv_store/kv_block.h"
#include "shard/model/architecture.h"

namespace strata {

// The abilities and limits that all stages of the pipeline share.
struct PipelineFacts {
  uint32_t n_stages = 1;
  uint32_t n_ctx = 512;        // positions per sequence
  uint32_t n_slots = 1;        // sequences in the caches at a time, kept ones included
  uint32_t n_batch = 512;      // rows per step
  uint32_t kv_cells = 0;       // positions of all slots together; 0: n_ctx × n_slots
  uint32_t n_vocab = 0;        // 0: not known
  uint32_t n_checkpoints = 0;  // that every stage has room for
  CacheAbility cache;
  // KV blocks that every stage has room for on its disk; 0: they keep none.
  uint32_t kv_blocks_max = 0;
  std::vector<std::vector<KvName>> kv_blocks;  // that each has, the least recently used first
};

// kInvalidArgument: a stage does not report its limits, or the stages disagree on them.
absl::StatusOr<PipelineFacts> FactsOf(absl::Span<const wire::StageInfo> stages);

// The contents of the slots of a pipeline's stages when it begins.
enum class SlotContents {
  kNothing,
  kAsBefore,  // in every stage what the stages of the pipeline before held, all steps done
  kAnything,
};

struct SchedulerPolicy {
  uint32_t steps_in_flight_max =
      0;                        // 0: one more than stages, so that none waits for the coordinator
  uint32_t chunk_tokens = 128;  // rows of a step that carries prompts while no request decodes
  // And more, where prompts are done sooner with it and no stage takes longer for a step; 0: never.
  uint32_t chunk_ms = 100;
  // How much longer than the batch itself takes a request's next token may wait behind prompts.
  uint32_t prompt_wait_ms = 100;
  // And behind sequences that are fed again because stages or their coordinator were lost: all
  // stopped then, and the last one to go on counts.
  uint32_t refeed_wait_ms = 1000;
  uint32_t queue_max = 256;  // requests that wait for a slot
  // So many pipelines may break in a row while a request is in their steps; then the request may be
  // the cause, and is given up.
  uint32_t pipelines_broken_max = 3;
  bool keep_prefixes = true;
  uint32_t prefix_tokens_min = 16;  // shorter ones are not worth a kept sequence
  // The results for a request do not depend on other requests, to the last bit: a step has rows of
  // one request; prompts are cut at multiples of ExactChunk(), and generated tokens are fed a row
  // at a time, also where a sequence is fed again; of kept sequences only such chunks of prompts
  // are reused, and no checkpoints; and no context is shifted. Stages have a cache for each slot
  // (CacheSpec::exact).
  bool exact = false;
  // Of sequences whose request does not say. While fewer of them decode than there are stages, and
  // no prompt is fed, stages that would be idle compute drafts of the tokens that follow.
  wire::Speculation speculation = wire::SPECULATION_AUTO;
};
inline uint32_t ExactChunk(const PipelineFacts& facts, const SchedulerPolicy& policy) {
  return std::min(std::max(policy.chunk_tokens, 1u), facts.n_batch);
}

// Steps of drafts, which are in flight beside SchedulerPolicy::steps_in_flight_max.
inline constexpr uint32_t kDraftsInFlightMax = 16;

// Where draft tokens come from, in the order in which the scheduler asks, as metrics name it.
inline constexpr std::array<const char*, 2> kDrafterNames = {"ngram", "model"};
// Draft tokens by how many places they stand behind the sequence's last token: the upper ends of
// classes, the last one open.
inline constexpr std::array<uint32_t, 4> kDraftDepths = {1, 2, 4, 8};
struct DraftCounts {
  uint64_t computed = 0;  // by stages, or being computed
  uint64_t accepted = 0;  // of those, right
};
using DraftsByDepth = std::array<DraftCounts, kDraftDepths.size() + 1>;
using DraftsByDrafter = std::array<DraftsByDepth, kDrafterNames.size()>;

// Steps by their rows: the upper ends of the classes of a histogram, the last one open.
inline constexpr std::array<uint32_t, 10> kStepRowsClasses = {1,  2,  4,   8,   16,
                                                              32, 64, 128, 256, 512};

// Current gauges, and counters since the start.
struct SchedulerStats {
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint32_t slots_kept = 0;   // ended sequences whose KV is kept
  uint32_t checkpoints = 0;  // states that are kept
  uint32_t steps_in_flight = 0;
  uint32_t drafts_in_flight = 0;  // of those, steps of drafts
  uint64_t kv_cells = 0;
  uint64_t kv_cells_used = 0;  // kept ones included
  uint64_t kv_cells_kept = 0;
  uint64_t requests = 0;
  uint64_t requests_refused = 0;  // the queue was full
  uint64_t requests_cancelled = 0;
  uint64_t requests_failed = 0;
  uint64_t steps = 0;
  uint64_t steps_failed = 0;
  uint64_t rows = 0;  // of all steps
  // Over which attention walked for these rows, each row's own position included.
  uint64_t cells = 0;
  std::array<uint64_t, kStepRowsClasses.size() + 1> steps_by_rows = {};
  uint64_t tokens = 0;
  DraftsByDrafter drafts = {};
  // Of all of them.
  uint64_t draft_tokens() const { return SumOf(&DraftCounts::computed); }
  uint64_t accepted_tokens() const { return SumOf(&DraftCounts::accepted); }
  uint64_t SumOf(uint64_t DraftCounts::* field) const {
    uint64_t sum = 0;
    for (const DraftsByDepth& by_depth : drafts) {
      for (const DraftCounts& counts : by_depth) sum += counts.*field;
    }
    return sum;
  }
  uint64_t prompt_tokens = 0;  // of admitted requests
  uint64_t cached_tokens = 0;  // of those, found in a cache
  uint64_t checkpoints_used = 0;
  uint64_t loaded_tokens = 0;  // from the stages' disks, also of sequences that lost their slot
  uint32_t kv_blocks = 0;      // that all stages have on their disks
  bool forgets_kept = false;   // stages have yet to do what Scheduler::ForgetKept() asked for
  uint64_t preemptions = 0;    // sequences that gave up their KV for others and were fed again
  std::vector<StageTotal> stages;
  // Over about the last ten seconds, by stage; empty: not known.
  std::vector<double> idle_share;
  uint64_t bytes_returned = 0;  // of frames from the last stage
};

}  // namespace strata
