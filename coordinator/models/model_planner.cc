#include "coordinator/models/model_planner.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/models/node_match.h"
#include "coordinator/models/replica_targets.h"
#include "coordinator/models/reusable_stages.h"
#include "coordinator/planner/context_choice.h"
#include "coordinator/planner/placement_options.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/unit_text.h"
#include "coordinator/request/request_status.h"
#include "shard/model/architecture.h"
#include "shard/model/cache_options.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

// For nodes that have just come and still measure.
constexpr absl::Duration kMeasureTime = absl::Seconds(20);
constexpr absl::Duration kMeasurePoll = absl::Milliseconds(300);
// For nodes that have just come to become members.
constexpr absl::Duration kJoinTime = absl::Seconds(5);
// For nodes that are suspected: within gone_after_ms they are heard again, or gone.
constexpr absl::Duration kSuspectedTime = absl::Seconds(3);
// Where the shared beginning of a sequence's prompts ends, and before the end of its last prompt.
constexpr uint32_t kCheckpointsForEach = 2;
constexpr absl::Duration kContinuePoll = absl::Milliseconds(100);
// A plan has to be that much faster before requests pause for it, or before a model that is idle
// moves.
constexpr double kGainMin = 0.2, kIdleGainMin = 0.03;

// Notes `why` unless that is what was noted last. kCancelled: interrupted.
absl::Status NoteOnce(const PlanningOptions& options, const std::string& why, std::string* noted) {
  if (!options.should_continue() || (why != *noted && !options.note(why))) {
    return absl::CancelledError("interrupted");
  }
  *noted = why;
  return absl::OkStatus();
}

// The report of all nodes, once it is known of each whether it is there.
absl::StatusOr<ClusterSnapshot> CollectSettled(const PlanningOptions& options) {
  std::string noted;
  for (const SteadyTime until = SteadyTime::Now() + kSuspectedTime;;) {
    auto report = options.collect();
    if (!report.ok() || options.skip_measurement_wait || SteadyTime::Now() >= until) return report;
    std::vector<std::string> suspected;
    for (const NodeReport& node : report->nodes) {
      if (node.seen.state() == "suspected") suspected.push_back(node.name());
    }
    if (suspected.empty()) return report;
    const std::string why =
        absl::StrCat("Waiting for ", absl::StrJoin(suspected, ", "), " to answer…");
    if (absl::Status s = NoteOnce(options, why, &noted); !s.ok()) return s;
    options.pause(kMeasurePoll);
  }
}

// Names of nodes that may become members of this coordinator in a moment: those that obey no
// coordinator yet, themselves, or this one.
std::vector<std::string> Joining(const ClusterSnapshot& report) {
  std::vector<std::string> names;
  for (const NodeReport& node : report.nodes) {
    const std::string& obeys = node.seen.obeys();
    const bool joins = obeys.empty() || obeys == node.id() || obeys == report.cluster.asked();
    if (node.client != nullptr && !node.seen.member() && joins) names.push_back(node.name());
  }
  return names;
}

// A coordinator commands its members only: it must not move another coordinator's stages. Returns
// the names of the others, which are left out.
std::vector<std::string> LeaveOutOthers(ClusterSnapshot* report) {
  std::vector<std::string> names;
  for (NodeReport& node : report->nodes) {
    if (!node.status.ok() || node.seen.member()) continue;
    node.status = absl::UnavailableError("it is not a member of this coordinator's group");
    names.push_back(node.name());
  }
  return names;
}

// Collects the report of all nodes, and again until they have measured and joined, or `wait` has
// passed.
absl::Status CollectNodes(const PlanningOptions& options, absl::Duration wait,
                          PlannedModel* planned) {
  const SteadyTime begin = SteadyTime::Now();
  for (std::string noted;;) {
    auto report = CollectSettled(options);
    if (!report.ok()) return report.status();
    if (report->cluster.coordinator() != report->cluster.asked()) {
      return AsLeaderChanged(absl::UnavailableError(
          "the node that planned does not coordinate the cluster any more; try again"));
    }
    planned->report = *std::move(report);
    const std::vector<std::string> others = LeaveOutOthers(&planned->report);
    const std::vector<std::string> joining = Joining(planned->report);
    const absl::Duration waited = SteadyTime::Now() - begin;
    std::string why;
    if (planned->report.measuring() && waited < wait) {
      why = "The nodes are measuring their devices and links…";
    } else if (!joining.empty() && waited < std::min(wait, kJoinTime)) {
      why = absl::StrCat("Waiting for ", absl::StrJoin(joining, ", "), " to join…");
    } else if (others.empty()) {
      return absl::OkStatus();
    }
    const bool waits = !why.empty();
    if (!waits) {
      why = absl::StrCat(
          "Left out, since not all nodes reach each other and they have another "
          "coordinator, or none yet: ",
          absl::StrJoin(others, ", "));
    }
    if (absl::Status s = NoteOnce(options, why, &noted); !s.ok()) return s;
    if (!waits) return absl::OkStatus();
    options.pause(kMeasurePoll);  // nodes do not report that they have measured
  }
}

const NodeReport* SourceNode(const PlannedModel& planned) {
  for (const NodeReport& node : planned.report.nodes) {
    if (absl::BytesToHexString(node.id()) == planned.source.node()) return &node;
  }
  return nullptr;
}

absl::Status SourceAnswers(const PlannedModel& planned) {
  const NodeReport* const source = SourceNode(planned);
  if (source == nullptr) {
    return absl::UnavailableError(
        "the node with the model's file is not in the cluster (see: strata nodes)");
  }
  if (source->client == nullptr) {
    return absl::Status(
        source->status.code(),
        absl::StrCat(source->name(),
                     ", which has the model's file, does not answer: ", source->status.message()));
  }
  return absl::OkStatus();
}

// OK: the file is still there, and is the model that was requested.
absl::Status HasModel(NodeClient* node, const std::string& path, const std::string& model_id) {
  const auto id = node->ShareModel(path);
  if (!id.ok() || *id == model_id) return id.status();
  return absl::FailedPreconditionError(
      absl::StrCat(node->name(), ": ", path, " is another model now"));
}

// Finds another node with the file where the source has gone, or else the caches that have its
// weights.
absl::Status FindSource(const std::string& model_id, PlannedModel* planned) {
  planned->cached.reset();
  if (planned->source.has_remote()) return absl::OkStatus();
  const std::string& path = planned->source.path();
  absl::Status gone = SourceAnswers(*planned);
  if (model_id.empty()) return gone;
  NodeClient* const source = gone.ok() ? planned->Source() : nullptr;
  if (source != nullptr) {
    gone = HasModel(source, path, model_id);
    if (gone.ok()) return gone;
  }
  std::vector<NodeClient*> nodes;
  for (const NodeReport& node : planned->report.nodes) nodes.push_back(node.client.get());
  std::vector<absl::Status> has(nodes.size(), absl::NotFoundError("it does not answer"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr || nodes[i] == source) continue;
    threads.emplace_back([&, i] { has[i] = HasModel(nodes[i], path, model_id); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!has[i].ok()) continue;
    planned->source.set_node(absl::BytesToHexString(planned->report.nodes[i].id()));
    return absl::OkStatus();
  }
  planned->cached = std::make_unique<WeightLocator>(nodes, model_id);
  if (!planned->cached->nodes().empty()) return absl::OkStatus();
  const bool passes = absl::IsDeadlineExceeded(gone) || absl::IsResourceExhausted(gone) ||
                      !planned->cached->silent().empty();
  return absl::Status(passes ? absl::StatusCode::kUnavailable : gone.code(),
                      absl::StrCat(gone.message(), "; no other node has ", path));
}

// Where there is no source: finds the nodes that have the weights to be loaded.
absl::Status FindHolders(const SliceOptions& options, PlannedModel* planned) {
  planned->holders.clear();
  if (planned->cached == nullptr) return absl::OkStatus();
  for (size_t i = 0; i < planned->plan.stages.size(); ++i) {
    const PlannedStage& stage = planned->plan.stages[i];
    auto found = planned->cached->HoldersOf(planned->model, stage.layers, options,
                                            planned->NodeOf(stage).client.get());
    const bool is_kept = !planned->kept.empty() && planned->kept[i];
    if (!found.ok() && !is_kept) {
      if (!absl::IsUnavailable(found.status())) return found.status();
      return absl::UnavailableError(absl::StrCat("no node that answers can give ",
                                                 planned->source.path(), ", and ",
                                                 found.status().message()));
    }
    planned->holders.push_back(found.ok() ? *std::move(found) : std::vector<NodeClient*>());
  }
  return absl::OkStatus();
}

// The headers, from the node that has the file, or out of a cache.
absl::StatusOr<std::shared_ptr<const ModelFile>> OpenHeaders(const PlanningOptions& options,
                                                             const PlannedModel& planned) {
  WeightFetcher::Request request;
  request.path = planned.source.path();
  request.headers_only = true;
  if (planned.source.has_remote()) {
    request.remote = planned.source.remote();
    request.model_id = options.model_id;
    for (const NodeReport& node : planned.report.nodes) {
      if (!request.model_id.empty() && node.client != nullptr) {
        request.peers.push_back(node.client->address());
      }
    }
  } else if (NodeClient* const source = planned.Source()) {
    const auto id = source->ShareModel(planned.source.path());
    if (!id.ok()) return id.status();
    request.model_id = *id;
    request.address = source->address();
  } else {
    request.model_id = options.model_id;
    for (const NodeClient* const node : planned.cached->nodes()) {
      request.peers.push_back(node->address());
    }
  }

  struct Outcome {
    absl::Mutex mu;
    std::optional<absl::StatusOr<WeightFetcher::Fetched>> fetched ABSL_GUARDED_BY(mu);
  };
  const auto outcome = std::make_shared<Outcome>();  // shared with the fetcher's thread
  WeightFetcher::Callbacks callbacks;
  callbacks.progress = [](uint64_t, uint64_t) {};
  callbacks.done = [outcome](absl::StatusOr<WeightFetcher::Fetched> fetched) {
    absl::MutexLock lock(outcome->mu);
    outcome->fetched = std::move(fetched);
  };
  const auto job = options.fetcher->Start(std::move(request), std::move(callbacks));
  absl::MutexLock lock(outcome->mu);
  const auto done = [&outcome]() ABSL_SHARED_LOCKS_REQUIRED(outcome->mu) {
    return outcome->fetched.has_value();
  };
  while (!outcome->mu.AwaitWithTimeout(absl::Condition(&done), kContinuePoll)) {
    if (options.should_continue()) continue;
    WeightFetcher::Cancel(job.get());
    return absl::CancelledError("interrupted");  // others' fetches may come first
  }
  if (!outcome->fetched->ok()) return outcome->fetched->status();
  return (*outcome->fetched)->headers;
}

// Whether `place` is a node, or a device of one, that is known and not in the plan's request.
bool IsElsewhere(const PlannedModel& planned, const std::string& place) {
  const auto means = [&](const std::string& name) {
    return place == name || absl::StartsWith(place, absl::StrCat(name, "/"));
  };
  return absl::c_any_of(planned.report.nodes, [&](const auto& n) { return means(n.name()); }) &&
         absl::c_none_of(planned.inputs.request.nodes,
                         [&](const auto& n) { return means(n.name); });
}

// Limits the disks that were short of room, by what their nodes have of the model already.
absl::Status LimitDisks(const std::vector<CapacityLimit>& limits, const SliceOptions& options,
                        PlannedModel* planned) {
  PlanRequest& request = planned->inputs.request;
  for (size_t i = 0; i < request.nodes.size(); ++i) {
    const NodeReport& node = planned->report.nodes[planned->inputs.places[i]];
    PlanNode& limited = request.nodes[i];
    limited.fetch_bytes.clear();  // of an earlier try
    for (const CapacityLimit& limit : limits) {
      if (!limit.of_disk() || limit.node_id != node.info.node_id()) continue;
      const bool is_first = limited.fetch_bytes.empty();
      limited.disk_free_bytes =
          is_first ? limit.bytes : std::min(limited.disk_free_bytes, limit.bytes);
      if (!is_first) continue;
      NodeClient* const client = node.client.get();
      auto fetched = WeightLocator({&client, 1}, planned->model->id())
                         .FetchBytes(planned->model, request.rule.cut_points, options, client);
      if (!fetched.ok()) return fetched.status();
      limited.fetch_bytes = *std::move(fetched);
    }
  }
  return absl::OkStatus();
}

// The longest context that the model was made for.
uint32_t TrainedContext(const ModelFile& model) {
  const uint64_t trained = model.header()
                               .GetInteger(absl::StrCat(model.architecture(), ".context_length"))
                               .value_or(512);
  return static_cast<uint32_t>(std::clamp<uint64_t>(trained, 16, kContextChosenMax));
}

uint32_t SeqsFor(const wire::PlacementOptions& placement) {
  return std::max(1u, placement.n_seqs());
}

absl::Status Place(const PlanningOptions& options, const wire::PlacementOptions& placement,
                   PlannedModel* planned) {
  const GgufHeader& header = planned->model->header();
  const CacheOptions cache = CacheOptionsOf(placement.cache());
  const uint32_t n_ctx = ContextFor(placement.n_ctx(), *planned->model);
  const uint32_t n_seqs = SeqsFor(placement);
  if (auto s = CheckCacheOptions(cache, n_ctx, n_seqs, header); !s.ok()) return s;
  auto costs = CountLayerCosts(
      header,
      {.type_k = cache.type_k, .type_v = cache.type_v, .unverified = placement.unverified()});
  if (!costs.ok()) return costs.status();
  planned->costs = *std::move(costs);
  planned->inputs = PlanInputsOf(planned->report);
  PlanRequest& request = planned->inputs.request;
  for (PlanDevice& device : request.devices) {
    const NodeReport& node = planned->report.nodes[planned->inputs.places[device.node]];
    for (const PlanningOptions::FreedMemory& freed : options.freed) {
      if (freed.node_id != node.info.node_id() || freed.device != device.name) continue;
      device.memory_free_bytes += freed.bytes;
      if (device.memory_pool == kOwnPool) continue;
      request.memory_pools[static_cast<size_t>(device.memory_pool)].free_bytes += freed.bytes;
    }
  }
  request.costs = &planned->costs;
  auto rule = CutRuleFor(planned->model->header(), placement.unverified());
  if (!rule.ok()) return rule.status();
  request.rule = *std::move(rule);
  request.cache = CacheShapeFor(placement, *planned->model);
  request.positions = options.positions;
  auto objective =
      ParseObjective(placement.objective().empty() ? "latency" : placement.objective());
  if (!objective.ok()) return objective.status();
  request.objective = *objective;
  auto activations = ParseActivations(placement.activations());
  if (!activations.ok()) return activations.status();
  request.activations = *activations;
  auto cpu_moe = ParseCpuMoe(placement.cpu_moe().empty() ? "auto" : placement.cpu_moe());
  if (!cpu_moe.ok()) return cpu_moe.status();
  request.cpu_moe = *cpu_moe;
  if (!placement.assign().empty()) {
    auto assign = ParseAssign(placement.assign());
    if (!assign.ok()) return assign.status();
    request.assignments = *std::move(assign);
  }
  if (!placement.exclude().empty()) {
    auto exclude = ParseExclude(placement.exclude());
    if (!exclude.ok()) return exclude.status();
    request.exclude = *std::move(exclude);
  }
  for (size_t i = 0; i < planned->inputs.places.size(); ++i) {
    if (!planned->report.nodes[planned->inputs.places[i]].info.draining()) continue;
    request.exclude.push_back(request.nodes[i].name);
  }
  if (!placement.reserve().empty()) {
    auto reserve = ParseReserve(placement.reserve());
    if (!reserve.ok()) return reserve.status();
    request.reserve = *std::move(reserve);
  }
  const bool again = options.reuse != PlanningOptions::Reuse::kIgnored || !options.model_id.empty();
  for (Assignment& each : request.assignments) {
    if (auto s = NamePlace(*planned, "--assign", again, &each.place); !s.ok()) return s;
  }
  for (std::string& place : request.exclude) {
    if (auto s = NamePlace(*planned, "--exclude", again, &place); !s.ok()) return s;
  }
  for (Reserve& each : request.reserve) {
    if (auto s = NamePlace(*planned, "--reserve", again, &each.node); !s.ok()) return s;
  }
  // Constraints on a node that is left out, or has gone, are met already.
  std::erase_if(request.exclude,
                [&](const std::string& place) { return IsElsewhere(*planned, place); });
  std::erase_if(request.reserve,
                [&](const Reserve& reserve) { return IsElsewhere(*planned, reserve.node); });
  bool any_kept_out = false;
  for (size_t i = 0; i < planned->inputs.places.size(); ++i) {
    const auto found =
        options.kept_out.find(planned->report.nodes[planned->inputs.places[i]].info.node_id());
    if (found == options.kept_out.end()) continue;
    request.nodes[i].kept_out = found->second;
    any_kept_out = true;
  }
  MemoryLeft left;
  for (const PlanDevice& device : request.devices) left.devices.push_back(device.memory_free_bytes);
  for (const MemoryPool& pool : request.memory_pools) left.pools.push_back(pool.free_bytes);
  std::vector<LoadedStage> loaded;
  if (options.reuse != PlanningOptions::Reuse::kIgnored) loaded = TakeLoaded(placement, planned);
  for (PlanDevice& device : request.devices) {
    const NodeReport& node = planned->report.nodes[planned->inputs.places[device.node]];
    for (const CapacityLimit& limit : options.limits) {
      if (limit.node_id != node.info.node_id() || limit.device != device.name) continue;
      device.memory_free_bytes = std::min(device.memory_free_bytes, limit.bytes);
    }
  }
  const SliceOptions slice = {.unverified = placement.unverified()};
  if (auto s = LimitDisks(options.limits, slice, planned); !s.ok()) return s;
  auto plan = PlanWithLoaded(request, loaded, options.reuse);
  // A model moves beside its requests only to nodes that are not kept out.
  if (!plan.ok() && any_kept_out && !options.beside) {
    for (PlanNode& node : request.nodes) node.kept_out.clear();
    plan = PlanWithLoaded(request, loaded, options.reuse);
  }
  if (!plan.ok()) return plan.status();
  planned->plan = *std::move(plan);
  if (options.reuse == PlanningOptions::Reuse::kAround && request.assignments.empty()) {
    planned->plan = PreferReplicas(request, StagesThatStay(loaded, planned->plan),
                                   HeldReplicas(*planned), std::move(planned->plan));
  }
  if (placement.n_ctx() == 0 && options.reuse == PlanningOptions::Reuse::kIgnored) {
    LengthenContext(TrainedContext(*planned->model), &request, &planned->plan);
  }
  MatchLoaded(loaded, options.reuse, planned);
  if (auto s = FindHolders(slice, planned); !s.ok()) return s;
  return options.beside ? FitsBeside(std::move(left), *planned) : absl::OkStatus();
}

// `has_source`: OK if one of the collected nodes has the file.
absl::Status CollectAndPlace(const PlanningOptions& options,
                             const wire::PlacementOptions& placement,
                             absl::FunctionRef<absl::Status()> has_source, PlannedModel* planned) {
  const auto try_within = [&](absl::Duration wait) {
    absl::Status status = CollectNodes(options, wait, planned);
    if (status.ok()) status = has_source();
    if (status.ok()) status = Place(options, placement, planned);
    return status;
  };
  if (options.skip_measurement_wait) {
    absl::Status status = try_within(absl::ZeroDuration());
    const bool lacks_nodes = (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) &&
                             !IsLeaderChanged(status) && !options.beside;
    const bool may_change =
        planned->report.measuring() || (lacks_nodes && !Joining(planned->report).empty());
    // Layers by hand are given up first: a node that they name may have gone.
    if (status.ok() || !placement.assign().empty() || !may_change) return status;
  }
  return try_within(kMeasureTime);
}

}  // namespace

absl::Status NamePlace(const PlannedModel& planned, absl::string_view option, bool again,
                       std::string* place) {
  const std::vector<PlanNode>& nodes = planned.inputs.request.nodes;
  const auto names = [&](absl::string_view name) {
    return *place == name || absl::StartsWith(*place, absl::StrCat(name, "/"));
  };
  if (place->empty()) return absl::OkStatus();
  if (absl::c_any_of(nodes, [&](const PlanNode& node) { return names(node.name); })) {
    return absl::OkStatus();
  }
  std::vector<NodeNames> meant;
  std::string found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeReport& node = planned.report.nodes[planned.inputs.places[i]];
    const NodeNames its = {.name = node.name(), .id_hex = node.info.node_id()};
    // Names may have a "/", as what is before a device.
    for (size_t end = 0; end != place->npos;) {
      end = place->find('/', end + 1);
      if (!MatchesNode(place->substr(0, end), its)) continue;
      if (meant.empty()) {
        found = absl::StrCat(nodes[i].name, end == place->npos ? "" : place->substr(end));
      }
      meant.push_back(its);
      break;
    }
  }
  if (meant.size() > 1 && !again) {
    return MatchesSeveralNodes(absl::StrCat(option, " ", *place), meant);
  }
  if (!meant.empty()) *place = found;
  return absl::OkStatus();
}

uint32_t ContextFor(uint32_t requested, const ModelFile& model) {
  return requested != 0 ? requested : std::min(TrainedContext(model), kContextDefaultMax);
}

const NodeReport& PlannedModel::NodeOf(const PlannedStage& stage) const {
  return report.nodes[inputs.places[inputs.request.devices[stage.device].node]];
}

CacheShape CacheShapeFor(const wire::PlacementOptions& placement, const ModelFile& model) {
  const CacheOptions cache = CacheOptionsOf(placement.cache());
  CacheShape shape;
  shape.n_ctx = ContextFor(placement.n_ctx(), model);
  shape.n_seqs = SeqsFor(placement);
  shape.n_batch = std::min(shape.n_ctx, 512u);
  shape.kv_cells = CellsOf(cache, shape.n_ctx, shape.n_seqs);
  shape.flash_attention = cache.flash_attention != "off";
  shape.exact = cache.exact;
  if (CacheAbilityFor(model.header()).checkpoint && !cache.exact) {
    shape.n_checkpoints = placement.cache().has_checkpoints()
                              ? cache.checkpoints
                              : std::min(kCheckpointsForEach * shape.n_seqs, kCheckpointsMax);
  }
  return shape;
}

bool WantSameStages(const wire::PlacementOptions& a, const wire::PlacementOptions& b,
                    const ModelFile& model) {
  const auto of = [&model](const wire::PlacementOptions& placement) {
    const CacheOptions cache = CacheOptionsOf(placement.cache());
    const CacheShape shape = CacheShapeFor(placement, model);
    return std::tuple(shape.n_ctx, shape.n_seqs, shape.cells(), shape.n_checkpoints, cache.type_k,
                      cache.type_v, cache.flash_attention, cache.exact, placement.unverified());
  };
  return of(a) == of(b);
}

absl::Status FitsBeside(MemoryLeft left, const PlannedModel& planned) {
  const PlanRequest& request = planned.inputs.request;
  const auto index_of = [&](const PlanDevice& device) {
    return static_cast<size_t>(&device - request.devices.data());
  };
  const auto take = [&](const PlanDevice& device, uint64_t bytes) {
    uint64_t& of_device = left.devices[index_of(device)];
    uint64_t& of_pool = device.memory_pool == kOwnPool
                            ? of_device
                            : left.pools[static_cast<size_t>(device.memory_pool)];
    if (bytes > of_device || bytes > of_pool) return false;
    of_device -= bytes;
    if (device.memory_pool != kOwnPool) of_pool -= bytes;
    return true;
  };
  const auto no_room = [&](const std::string& what, const PlanDevice& device) {
    return absl::ResourceExhaustedError(absl::StrCat(what, " find no room on ",
                                                     PlaceName(request, index_of(device)),
                                                     " beside what is loaded there"));
  };
  for (size_t i = 0; i < planned.plan.stages.size(); ++i) {
    if (!planned.kept.empty() && planned.kept[i]) continue;
    const PlannedStage& stage = planned.plan.stages[i];
    const PlanDevice& device = request.devices[stage.device];
    const PlanDevice* const cpu = planned.CpuOf(stage);
    const bool on_cpu = stage.host_bytes > 0 && cpu != nullptr;
    if (!take(device, stage.memory_bytes())) return no_room(LayersText(stage.layers), device);
    if (on_cpu && !take(*cpu, stage.host_bytes)) {
      return no_room(absl::StrCat("the experts of ", LayersText(stage.layers)), *cpu);
    }
  }
  return absl::OkStatus();
}

const PlanDevice* PlannedModel::CpuOf(const PlannedStage& stage) const {
  const std::vector<PlanDevice>& devices = inputs.request.devices;
  for (const PlanDevice& device : devices) {
    if (device.is_cpu && device.node == devices[stage.device].node) return &device;
  }
  return nullptr;
}

bool PlannedModel::IsAllKept() const {
  return !kept.empty() && absl::c_all_of(kept, [](const auto& one) { return one.has_value(); });
}

NodeClient* PlannedModel::Source() const {
  const bool has_source = cached == nullptr && !source.has_remote();
  const NodeReport* const node = has_source ? SourceNode(*this) : nullptr;
  return node == nullptr ? nullptr : node->client.get();
}

std::vector<std::vector<NodeClient*>> PlannedModel::WeightPeers() const {
  if (cached != nullptr) return holders;
  std::vector<std::pair<int, NodeClient*>> peers;
  for (const NodeReport& node : report.nodes) {
    const bool is_source =
        !source.has_remote() && absl::BytesToHexString(node.id()) == source.node();
    if (node.client == nullptr || is_source) continue;
    const bool holds = absl::c_any_of(node.info.stages(), [&](const wire::StageStatus& stage) {
      return stage.model_id() == model->id();
    });
    const bool planned = absl::c_any_of(
        plan.stages, [&](const PlannedStage& stage) { return &NodeOf(stage) == &node; });
    peers.emplace_back(holds ? 0 : planned ? 1 : 2, node.client.get());
  }
  std::stable_sort(peers.begin(), peers.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NodeClient*> clients;
  for (const auto& [rank, client] : peers) clients.push_back(client);
  return std::vector(plan.stages.size(), clients);
}

std::optional<CapacityLimit> CapacityLimitOf(const PlannedModel& planned, const absl::Status& why) {
  const std::optional<uint32_t> stage = StageOf(why);
  const bool wrong_numbers = HasWrongNumbers(why);
  if ((!absl::IsResourceExhausted(why) && !wrong_numbers) || !stage ||
      *stage >= planned.plan.stages.size()) {
    return std::nullopt;
  }
  const PlannedStage& at = planned.plan.stages[*stage];
  const std::string& node_id = planned.NodeOf(at).info.node_id();
  const PlanDevice& device = planned.inputs.request.devices[at.device];
  if (wrong_numbers) {
    return CapacityLimit{.node_id = node_id, .device = device.name, .wrong_numbers = true};
  }
  if (const std::optional<DiskShortage> disk = DiskShortageOf(why)) {
    // If the plan knew this limit already: half of it where several stages share the disk, else
    // nothing more is fetched there.
    const PlanNode& node = planned.inputs.request.nodes[device.node];
    const auto stages = absl::c_count_if(planned.plan.stages, [&](const PlannedStage& stage) {
      return planned.inputs.request.devices[stage.device].node == device.node;
    });
    uint64_t bytes = disk->free_bytes;
    if (!node.fetch_bytes.empty()) bytes = stages > 1 ? node.disk_free_bytes / 2 : 0;
    return CapacityLimit{.node_id = node_id, .device = "", .bytes = bytes};
  }
  const std::optional<MemoryShortage> shortage = ShortageOf(why);
  if (!shortage) return std::nullopt;
  const PlanDevice* const cpu = planned.CpuOf(at);
  const bool on_host = shortage->on_host && at.host_bytes > 0 && cpu != nullptr;
  uint64_t bytes = 0;
  for (const PlannedStage& stage : planned.plan.stages) {
    const bool is_there = planned.inputs.request.devices[stage.device].node == device.node;
    if (on_host && is_there) bytes += stage.host_bytes;
    if (!on_host && stage.device == at.device) bytes += stage.memory_bytes();
  }
  // In the planner's figures, which may be off by as much as the stage turned out larger. Where
  // nothing is known but that it was too much, a quarter less.
  uint64_t missing = (on_host ? at.host_bytes : at.memory_bytes()) / 4;
  if (shortage->needed_bytes > shortage->free_bytes) {
    missing = shortage->needed_bytes - shortage->free_bytes;
  }
  return CapacityLimit{.node_id = node_id,
                       .device = on_host ? cpu->name : device.name,
                       .bytes = bytes - std::min(bytes, std::max<uint64_t>(missing, 1))};
}

std::string KeptText(const std::vector<wire::StageInfo>& loaded) {
  const auto kept = absl::c_count_if(loaded, [](const auto& stage) { return stage.kept(); });
  return absl::StrCat(kept, " of ", loaded.size(), " stages kept");
}

MoveBenefit BenefitOf(double gain, bool has_fewer_stages) {
  if (gain >= kGainMin) return MoveBenefit::kMoving;
  const bool merges = has_fewer_stages && gain > 0;
  return gain >= kIdleGainMin || merges ? MoveBenefit::kMovingIdle : MoveBenefit::kNothing;
}

double GainOf(const Plan& from, const Plan& to) { return 1 - SecondsOf(to) / SecondsOf(from); }

absl::StatusOr<std::unique_ptr<PlannedModel>> PlanModel(const PlanningOptions& options,
                                                        const wire::ModelSource& source,
                                                        const wire::PlacementOptions& placement) {
  auto planned = std::make_unique<PlannedModel>();
  planned->source = source;
  const auto find = [&] { return FindSource(options.model_id, planned.get()); };
  if (options.known != nullptr) {
    planned->model = options.known;
    if (auto s = CollectAndPlace(options, placement, find, planned.get()); !s.ok()) return s;
    return planned;
  }
  // The file first: its errors are reported at once.
  auto report = CollectSettled(options);
  if (!report.ok()) return report.status();
  planned->report = *std::move(report);
  if (auto s = find(); !s.ok()) return s;
  auto model = OpenHeaders(options, *planned);
  if (!model.ok()) return model.status();
  planned->model = *std::move(model);
  if (options.on_headers) {
    if (auto s = options.on_headers(*planned->model); !s.ok()) return s;
  }
  if (auto s = CollectAndPlace(options, placement, find, planned.get()); !s.ok()) return s;
  return planned;
}

}  // namespace strata
