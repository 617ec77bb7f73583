#include "shard/engine/sequence_state.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace strata {
namespace {

// The magic number and the sequence's id, which are not used.
constexpr size_t kSequenceHeadBytes = 8;
// A cell: its position, how many sequences it has (one), the place in an image of models with such
// positions, the sequence's id.
constexpr size_t kCellBytes = 12, kCellBytesWithPlace = 20;

template <typename T>
T Load(absl::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

void Append(uint32_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads bytes from the front; once there are too few, ok() is false and all results are empty or 0.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}

  absl::string_view Take(uint64_t n) {
    ok_ = ok_ && n <= bytes_.size();
    if (!ok_) return {};
    const absl::string_view taken = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return taken;
  }
  // A product that overflows counts as too many.
  absl::string_view Take(uint64_t n, uint64_t each, uint64_t times = 1) {
    uint64_t bytes = 0;
    ok_ = ok_ && !__builtin_mul_overflow(n, each, &bytes) &&
          !__builtin_mul_overflow(bytes, times, &bytes);
    return Take(bytes);
  }
  uint32_t TakeNumber() {
    const absl::string_view bytes = Take(sizeof(uint32_t));
    return ok_ ? Load<uint32_t>(bytes, 0) : 0;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && bytes_.empty(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

// The differences between libllama's versions and models.
struct Layout {
  size_t cell_bytes = kCellBytes;
  size_t shape_bytes = 0;  // between the number of layers and the first of them
  bool has_values = true;  // false: they are made of the keys
};

// One layer's keys or values: `n_runs` times the bytes of all cells, one after the other.
struct Block {
  absl::string_view head;
  uint64_t n_runs = 1;
  uint64_t cell_bytes = 0;
  absl::string_view data;
};

// All views point into the bytes that it was parsed from.
struct State {
  absl::string_view head;
  uint32_t n_streams = 0;
  uint32_t n_cells = 0;  // of its stream; the others have none
  absl::string_view cells;
  uint32_t has_columns = 0;  // of values; else rows
  absl::string_view shape;
  std::vector<Block> keys, values;
};

Block TakeRows(uint32_t n_cells, Cursor* from) {
  constexpr size_t kType = 4, kRow = 8;
  Block block = {.head = from->Take(kType + kRow)};
  if (!from->ok()) return block;
  block.cell_bytes = Load<uint64_t>(block.head, kType);
  block.data = from->Take(n_cells, block.cell_bytes);
  return block;
}

Block TakeColumns(uint32_t n_cells, Cursor* from) {
  constexpr size_t kType = 4, kElement = 4, kColumns = 4;
  Block block = {.head = from->Take(kType + kElement + kColumns)};
  if (!from->ok()) return block;
  block.cell_bytes = Load<uint32_t>(block.head, kType);
  block.n_runs = Load<uint32_t>(block.head, kType + kElement);
  block.data = from->Take(n_cells, block.cell_bytes, block.n_runs);
  return block;
}

std::optional<State> ReadAs(const Layout& layout, absl::string_view bytes) {
  Cursor from(bytes);
  State state;
  state.head = from.Take(kSequenceHeadBytes);
  state.n_streams = from.TakeNumber();
  uint32_t stream = 0;
  for (; stream < state.n_streams && state.n_cells == 0 && from.ok(); ++stream) {
    state.n_cells = from.TakeNumber();
  }
  if (state.n_cells == 0) return std::nullopt;
  state.cells = from.Take(state.n_cells, layout.cell_bytes);
  state.has_columns = from.TakeNumber();
  const uint32_t n_layers = from.TakeNumber();
  state.shape = from.Take(layout.shape_bytes);
  if (!from.ok() || state.has_columns > 1) return std::nullopt;
  for (size_t cell = 0; cell < state.n_cells; ++cell) {
    if (Load<uint32_t>(state.cells, cell * layout.cell_bytes + 4) != 1) return std::nullopt;
  }
  for (uint32_t i = 0; i < n_layers && from.ok(); ++i) {
    state.keys.push_back(TakeRows(state.n_cells, &from));
  }
  for (uint32_t i = 0; i < n_layers && from.ok() && layout.has_values; ++i) {
    state.values.push_back(state.has_columns != 0 ? TakeColumns(state.n_cells, &from)
                                                  : TakeRows(state.n_cells, &from));
  }
  for (; stream < state.n_streams && from.ok(); ++stream) {
    if (from.TakeNumber() != 0) return std::nullopt;
  }
  if (!from.AtEnd()) return std::nullopt;
  return state;
}

// The bytes do not name their layout: it is the one that parses to the last byte.
std::optional<State> Read(absl::string_view bytes) {
  for (const size_t cell_bytes : {kCellBytes, kCellBytesWithPlace}) {
    for (const size_t shape_bytes : {8, 0}) {
      for (const bool has_values : {true, false}) {
        auto state = ReadAs({cell_bytes, shape_bytes, has_values}, bytes);
        if (state) return state;
      }
    }
  }
  return std::nullopt;
}

size_t CellBytes(const State& state) {
  return state.n_cells == 0 ? 0 : state.cells.size() / state.n_cells;
}

int32_t PositionOf(const State& state, size_t cell) {
  return Load<int32_t>(state.cells, cell * CellBytes(state));
}

// All cells, by position.
std::vector<uint32_t> CellsByPosition(const State& state) {
  std::vector<uint32_t> cells(state.n_cells);
  std::iota(cells.begin(), cells.end(), 0);
  std::ranges::stable_sort(cells, {}, [&](uint32_t cell) { return PositionOf(state, cell); });
  return cells;
}

// Some cells of a state.
struct Part {
  const State* state = nullptr;
  std::vector<uint32_t> cells;
};

// Writes a state of the cells of all parts, one after the other.
class Writer {
 public:
  // Writes the head, with the layout of the first part, for `n_layers` layers. `bytes_max` bounds
  // the whole state. `parts` outlives it.
  Writer(absl::Span<const Part> parts, uint32_t n_layers, size_t bytes_max) : parts_(parts) {
    const State& first = *parts[0].state;
    uint32_t n_cells = 0;
    for (const Part& part : parts) n_cells += static_cast<uint32_t>(part.cells.size());
    out_.reserve(bytes_max);
    out_.append(first.head);
    Append(first.n_streams, &out_);
    Append(n_cells, &out_);
    for (const Part& part : parts) {
      AppendRun({.cell_bytes = CellBytes(first), .data = part.state->cells}, 0, part.cells);
    }
    Append(first.has_columns, &out_);
    Append(n_layers, &out_);
    out_.append(first.shape);
    n_streams_ = first.n_streams;
  }

  // Adds a layer's keys or values: of each part, the block that `of` returns for its state.
  template <typename Of>
  void Add(const Of& of) {
    const Block& first = of(*parts_[0].state);
    out_.append(first.head);
    if (first.data.empty()) return;  // of any number of runs
    for (uint64_t run = 0; run < first.n_runs; ++run) {
      for (const Part& part : parts_) AppendRun(of(*part.state), run, part.cells);
    }
  }
  std::string Take() {
    for (uint32_t stream = 1; stream < n_streams_; ++stream) Append(0, &out_);
    return std::move(out_);
  }

 private:
  // The cells of one of the block's runs.
  void AppendRun(const Block& block, uint64_t run, absl::Span<const uint32_t> cells) {
    const uint64_t run_bytes = block.data.size() / block.n_runs;
    const absl::string_view data = block.data.substr(run * run_bytes, run_bytes);
    for (size_t i = 0; i < cells.size();) {
      size_t end = i + 1;
      while (end < cells.size() && cells[end] == cells[end - 1] + 1) ++end;
      out_.append(data.substr(cells[i] * block.cell_bytes, (end - i) * block.cell_bytes));
      i = end;
    }
  }

  const absl::Span<const Part> parts_;
  uint32_t n_streams_ = 0;
  std::string out_;
};

bool Rises(const State& state) {
  for (size_t cell = 1; cell < state.n_cells; ++cell) {
    if (PositionOf(state, cell - 1) > PositionOf(state, cell)) return false;
  }
  return true;
}

// Laid out alike; the numbers of layers may differ.
bool LooksLike(const State& state, const State& first) {
  return CellBytes(state) == CellBytes(first) && state.n_streams == first.n_streams &&
         state.has_columns == first.has_columns && state.shape == first.shape &&
         state.values.empty() == first.values.empty();
}

bool HasPositionsOf(const State& state, const State& first) {
  if (state.n_cells != first.n_cells) return false;
  for (size_t cell = 0; cell < state.n_cells; ++cell) {
    if (PositionOf(state, cell) != PositionOf(first, cell)) return false;
  }
  return true;
}

bool HasLayersOf(const State& state, const State& first) {
  const auto same = [](const Block& a, const Block& b) { return a.head == b.head; };
  return std::ranges::equal(state.keys, first.keys, same) &&
         std::ranges::equal(state.values, first.values, same);
}

absl::Status CannotBeSplit() {
  return absl::UnimplementedError("the cache of this model cannot be split so");
}

// The result of `make`; kResourceExhausted where it runs out of memory.
template <typename Make>
auto InMemory(const Make& make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory to split or join a cache");
  }
}

// The layers of all parts, which have the same. `bytes_max` as of Writer.
std::string Write(absl::Span<const Part> parts, LayerRange layers, size_t bytes_max) {
  Writer writer(parts, layers.size(), bytes_max);
  for (const auto blocks : {&State::keys, &State::values}) {
    const bool has_blocks = !(parts[0].state->*blocks).empty();
    for (uint32_t i = layers.begin; i < layers.end && has_blocks; ++i) {
      writer.Add([&](const State& state) -> const Block& { return (state.*blocks)[i]; });
    }
  }
  return writer.Take();
}

absl::StatusOr<std::vector<State>> ReadAll(absl::Span<const absl::string_view> states) {
  std::vector<State> all;
  for (const absl::string_view one : states) {
    std::optional<State> state = Read(one);
    if (!state || !Rises(*state) || (!all.empty() && !LooksLike(*state, all.front()))) {
      return absl::InvalidArgumentError("two parts of a cache do not fit together");
    }
    all.push_back(*std::move(state));
  }
  if (all.empty()) return absl::InvalidArgumentError("no stage has any caches");
  return all;
}

size_t TotalBytes(absl::Span<const absl::string_view> states) {
  size_t bytes = 0;
  for (const absl::string_view one : states) bytes += one.size();
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> LayersOf(absl::string_view state, uint32_t n_layers,
                                     LayerRange layers) {
  return InMemory([&]() -> absl::StatusOr<std::string> {
    const std::optional<State> all = Read(state);
    if (!all || all->keys.size() != n_layers || layers.begin >= layers.end ||
        layers.end > n_layers) {
      return CannotBeSplit();
    }
    const Part part = {.state = &*all, .cells = CellsByPosition(*all)};
    return Write({&part, 1}, layers, state.size());
  });
}

absl::StatusOr<std::string> PositionsOf(absl::string_view state, uint32_t begin, uint32_t end) {
  return InMemory([&]() -> absl::StatusOr<std::string> {
    const std::optional<State> all = Read(state);
    if (!all || all->keys.empty() || begin >= end) return CannotBeSplit();
    Part part = {.state = &*all, .cells = CellsByPosition(*all)};
    std::erase_if(part.cells, [&](uint32_t cell) {
      const int64_t position = PositionOf(*all, cell);
      return position < begin || position >= end;
    });
    if (part.cells.size() != end - begin) return CannotBeSplit();
    return Write({&part, 1}, {0, static_cast<uint32_t>(all->keys.size())}, state.size());
  });
}

absl::StatusOr<std::vector<std::string>> BlocksOf(absl::string_view state, uint32_t begin,
                                                  uint32_t block_positions, size_t n_blocks) {
  return InMemory([&]() -> absl::StatusOr<std::vector<std::string>> {
    const std::optional<State> all = Read(state);
    if (!all || all->keys.empty()) return CannotBeSplit();
    const std::vector<uint32_t> cells = CellsByPosition(*all);
    const auto position = [&](uint32_t cell) { return int64_t{PositionOf(*all, cell)}; };
    auto next = std::ranges::lower_bound(cells, int64_t{begin}, {}, position);
    constexpr size_t kHeadBytes = 4096;
    const size_t bytes_max = (state.size() / all->n_cells + 1) * block_positions + kHeadBytes;
    std::vector<std::string> blocks;
    for (size_t i = 0; i < n_blocks; ++i) {
      const int64_t end = int64_t{begin} + static_cast<int64_t>(i + 1) * block_positions;
      const auto last = std::ranges::lower_bound(next, cells.end(), end, {}, position);
      if (last - next != block_positions) return CannotBeSplit();
      const Part part = {.state = &*all, .cells = {next, last}};
      next = last;
      blocks.push_back(Write({&part, 1}, {0, static_cast<uint32_t>(all->keys.size())}, bytes_max));
    }
    return blocks;
  });
}

absl::StatusOr<std::string> JoinLayers(absl::Span<const absl::string_view> states) {
  return InMemory([&]() -> absl::StatusOr<std::string> {
    const auto all = ReadAll(states);
    if (!all.ok()) return all.status();
    uint32_t n_layers = 0;
    for (const State& state : *all) {
      if (!HasPositionsOf(state, all->front())) {
        return absl::InvalidArgumentError("the caches of two stages have other positions");
      }
      n_layers += static_cast<uint32_t>(state.keys.size());
    }
    const Part part = {.state = &all->front(), .cells = CellsByPosition(all->front())};
    Writer writer({&part, 1}, n_layers, TotalBytes(states));
    for (const auto blocks : {&State::keys, &State::values}) {
      for (const State& state : *all) {
        for (const Block& block : state.*blocks) {
          writer.Add([&](const State&) -> const Block& { return block; });
        }
      }
    }
    return writer.Take();
  });
}

absl::StatusOr<std::string> JoinPositions(absl::Span<const absl::string_view> states) {
  return InMemory([&]() -> absl::StatusOr<std::string> {
    const auto all = ReadAll(states);
    if (!all.ok()) return all.status();
    std::vector<Part> parts;
    for (const State& state : *all) {
      const bool follows =
          parts.empty() ||
          PositionOf(state, 0) > PositionOf(*parts.back().state, parts.back().state->n_cells - 1);
      if (!follows || !HasLayersOf(state, all->front())) {
        return absl::InvalidArgumentError("a part of a cache does not follow the one before it");
      }
      parts.push_back({.state = &state, .cells = CellsByPosition(state)});
    }
    const auto n_layers = static_cast<uint32_t>(all->front().keys.size());
    return Write(parts, {0, n_layers}, TotalBytes(states));
  });
}

}  // namespace strata
