#include "coordinator/planner/kept_stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace strata {
namespace {

// The room that stages take: memory of each candidate, of its pool and of the CPU that keeps
// experts, and disk of their nodes.
class Room {
 public:
  explicit Room(const PlanProblem& problem)
      : problem_(problem), taken_(problem.candidates().size(), 0) {}

  bool Has(const Piece& piece) const {
    const PlanProblem::Candidate& candidate = problem_.candidates()[piece.candidate];
    const uint64_t bytes = problem_.StageBytes(piece);
    if (taken_[piece.candidate] + bytes > candidate.memory_bytes) return false;
    if (!problem_.Fits(piece, {})) return false;
    const auto fetched = fetched_.find(candidate.node);
    if (fetched != fetched_.end() &&
        fetched->second + problem_.FetchBytes(piece) > candidate.disk_free_bytes) {
      return false;
    }
    if (candidate.memory_pool == kOwnPool) return true;
    const auto pool = pools_.find(candidate.memory_pool);
    return (pool == pools_.end() ? 0 : pool->second) + bytes <=
           problem_.PoolBytes(candidate.memory_pool);
  }
  void Take(const Piece& piece) {
    const uint64_t bytes = problem_.StageBytes(piece);
    taken_[piece.candidate] += bytes;
    const PlanProblem::Candidate& candidate = problem_.candidates()[piece.candidate];
    if (candidate.memory_pool != kOwnPool) pools_[candidate.memory_pool] += bytes;
    if (const uint64_t fetch = problem_.FetchBytes(piece); fetch > 0) {
      fetched_[candidate.node] += fetch;
    }
  }
  bool TakeIfThereIs(const Piece& piece) {
    if (!Has(piece)) return false;
    Take(piece);
    return true;
  }
  uint64_t Left(size_t candidate) const {
    const uint64_t all = problem_.candidates()[candidate].memory_bytes;
    return all - std::min(all, taken_[candidate]);
  }

 private:
  const PlanProblem& problem_;
  std::vector<uint64_t> taken_;  // [candidates]
  std::map<int, uint64_t> pools_;
  std::map<size_t, uint64_t> fetched_;  // by node
};

// A device that has several stages computes one after the other.
double Cost(const PlanProblem& problem, const Pieces& pieces) {
  const Aim aim = AimOf(problem.request().objective);
  double cost = CostOf(problem, aim, pieces);
  if (aim == Aim::kSum) return cost;
  std::vector<double> busy(problem.candidates().size(), 0);
  for (const Piece& piece : pieces) busy[piece.candidate] += problem.StageSeconds(piece);
  for (const double seconds : busy) cost = std::max(cost, seconds);
  return cost;
}

class Filler {
 public:
  Filler(const PlanProblem& problem, Pieces kept)
      : problem_(problem), room_(problem), pieces_(std::move(kept)) {
    for (const Piece& piece : pieces_) room_.Take(piece);
  }

  // Puts [begin, end) in front of pieces()[at]; returns how many stages that took, 0: no room.
  size_t Fill(size_t at, size_t begin, size_t end) {
    Pieces best = WithOne(at, begin, end);
    if (best.empty()) best = WithTwo(at, begin, end);
    if (best.empty()) best = Packed(begin, end);
    for (const Piece& piece : best) room_.Take(piece);
    pieces_.insert(pieces_.begin() + static_cast<std::ptrdiff_t>(at), best.begin(), best.end());
    return best.size();
  }
  const Pieces& pieces() const { return pieces_; }

 private:
  size_t n() const { return problem_.candidates().size(); }

  // Hops over gaps that are still open further on are counted as if they stayed open.
  void Consider(size_t at, const Pieces& fill, double* least, Pieces* best) const {
    Pieces whole = pieces_;
    whole.insert(whole.begin() + static_cast<std::ptrdiff_t>(at), fill.begin(), fill.end());
    const double cost = Cost(problem_, whole);
    if (cost >= *least) return;
    *least = cost;
    *best = fill;
  }

  Pieces WithOne(size_t at, size_t begin, size_t end) const {
    Pieces best;
    double least = kNever;
    if (!problem_.SizeAllowed(begin, end)) return best;
    for (size_t c = 0; c < n(); ++c) {
      const Piece piece = {c, begin, end};
      if (room_.Has(piece)) Consider(at, {piece}, &least, &best);
    }
    return best;
  }

  Pieces WithTwo(size_t at, size_t begin, size_t end) const {
    Pieces best;
    double least = kNever;
    for (size_t cut = begin + 1; cut < end; ++cut) {
      if (!problem_.SizeAllowed(begin, cut) || !problem_.SizeAllowed(cut, end)) continue;
      for (size_t a = 0; a < n(); ++a) {
        const Piece first = {a, begin, cut};
        Room room = room_;
        if (!room.TakeIfThereIs(first)) continue;
        for (size_t b = 0; b < n(); ++b) {
          const Piece second = {b, cut, end};
          if (a != b && room.Has(second)) Consider(at, {first, second}, &least, &best);
        }
      }
    }
    return best;
  }

  // Packs each device in turn, the one with the most room first, with as many layers as fit.
  Pieces Packed(size_t begin, size_t end) const {
    std::vector<size_t> order(n());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return room_.Left(a) > room_.Left(b); });
    Pieces packed;
    Room room = room_;
    for (const size_t c : order) {
      size_t to = end;
      while (to > begin && !(problem_.SizeAllowed(begin, to) && room.Has({c, begin, to}))) --to;
      if (to == begin) continue;
      room.Take({c, begin, to});
      packed.push_back({c, begin, to});
      begin = to;
      if (begin == end) return packed;
    }
    return {};
  }

  const PlanProblem& problem_;
  Room room_;
  Pieces pieces_;
};

std::optional<size_t> PointOf(const PlanProblem& problem, uint32_t layer) {
  const std::vector<uint32_t>& points = problem.points();
  const auto found = std::lower_bound(points.begin(), points.end(), layer);
  if (found == points.end() || *found != layer) return std::nullopt;
  return static_cast<size_t>(found - points.begin());
}

}  // namespace

Pieces KeptPieces(const PlanProblem& problem, const std::vector<KeptStage>& kept) {
  Pieces there;
  const auto& candidates = problem.candidates();
  for (const KeptStage& stage : kept) {
    const auto candidate = std::find_if(candidates.begin(), candidates.end(),
                                        [&](const auto& c) { return c.device == stage.device; });
    const std::optional<size_t> begin = PointOf(problem, stage.layers.begin);
    const std::optional<size_t> end = PointOf(problem, stage.layers.end);
    if (candidate == candidates.end() || !begin || !end || *begin >= *end) continue;
    there.push_back({static_cast<size_t>(candidate - candidates.begin()), *begin, *end});
  }
  std::stable_sort(there.begin(), there.end(), [](const Piece& a, const Piece& b) {
    return a.end - a.begin > b.end - b.begin;
  });
  Pieces stay;
  Room room(problem);
  for (const Piece& piece : there) {
    const bool overlaps = std::any_of(stay.begin(), stay.end(), [&](const Piece& other) {
      return piece.begin < other.end && other.begin < piece.end;
    });
    if (!overlaps && room.TakeIfThereIs(piece)) stay.push_back(piece);
  }
  std::sort(stay.begin(), stay.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return stay;
}

Pieces FillGaps(const PlanProblem& problem, const Pieces& kept) {
  Filler filler(problem, kept);
  size_t at = 0, reached = 0;
  for (const Piece& piece : kept) {
    if (reached < piece.begin) {
      const size_t filled = filler.Fill(at, reached, piece.begin);
      if (filled == 0) return {};
      at += filled;
    }
    reached = piece.end;
    ++at;
  }
  if (reached < problem.last_point() && filler.Fill(at, reached, problem.last_point()) == 0) {
    return {};
  }
  return Cost(problem, filler.pieces()) == kNever ? Pieces() : filler.pieces();
}

}  // namespace strata
