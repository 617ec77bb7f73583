#include "shard/kv_transfer/cache_layers.h"

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
  uint32_t n_cells = 0;
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
  const uint32_t n_streams = from.TakeNumber();
  state.n_cells = from.TakeNumber();
  state.cells = from.Take(state.n_cells, layout.cell_bytes);
  state.has_columns = from.TakeNumber();
  const uint32_t n_layers = from.TakeNumber();
  state.shape = from.Take(layout.shape_bytes);
  if (!from.ok() || n_streams != 1 || state.has_columns > 1) return std::nullopt;
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

class Writer {
 public:
  // Writes the head of a state with the cells of `first`, sorted by position, its layout and
  // `n_layers` layers. `bytes_max` bounds the whole state.
  Writer(const State& first, uint32_t n_layers, size_t bytes_max) : order_(first.n_cells) {
    out_.reserve(bytes_max);
    const auto position = [&first](uint32_t cell) { return PositionOf(first, cell); };
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, position);
    is_sorted_ = std::ranges::is_sorted(order_);
    out_.append(first.head);
    Append(1, &out_);
    Append(first.n_cells, &out_);
    AppendInOrder({.cell_bytes = CellBytes(first), .data = first.cells});
    Append(first.has_columns, &out_);
    Append(n_layers, &out_);
    out_.append(first.shape);
  }

  void Add(absl::Span<const Block> blocks) {
    for (const Block& block : blocks) {
      out_.append(block.head);
      AppendInOrder(block);
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  void AppendInOrder(const Block& block) {
    if (is_sorted_ || block.data.empty()) {
      out_.append(block.data);
      return;
    }
    for (uint64_t run = 0; run < block.n_runs; ++run) {
      const absl::string_view cells = block.data.substr(run * order_.size() * block.cell_bytes);
      for (const uint32_t cell : order_) {
        out_.append(cells.substr(cell * block.cell_bytes, block.cell_bytes));
      }
    }
  }

  std::vector<uint32_t> order_;  // cells by position
  bool is_sorted_ = true;        // order_ is the identity
  std::string out_;
};

bool Rises(const State& state) {
  for (size_t cell = 1; cell < state.n_cells; ++cell) {
    if (PositionOf(state, cell - 1) > PositionOf(state, cell)) return false;
  }
  return true;
}

// The same positions in the same order, laid out alike.
bool Matches(const State& state, const State& first) {
  if (state.n_cells != first.n_cells || state.cells.size() != first.cells.size() ||
      state.has_columns != first.has_columns || state.shape != first.shape ||
      state.values.empty() != first.values.empty()) {
    return false;
  }
  for (size_t cell = 0; cell < state.n_cells; ++cell) {
    if (PositionOf(state, cell) != PositionOf(first, cell)) return false;
  }
  return true;
}

absl::Status NoMemory() {
  return absl::ResourceExhaustedError("no memory to split a cache by layers");
}

}  // namespace

absl::StatusOr<std::string> LayersOf(absl::string_view state, uint32_t n_layers,
                                     LayerRange layers) {
  try {
    const std::optional<State> all = Read(state);
    if (!all || all->keys.size() != n_layers || layers.begin >= layers.end ||
        layers.end > n_layers) {
      return absl::UnimplementedError("the caches of this model cannot be split by layers");
    }
    Writer writer(*all, layers.size(), state.size());
    writer.Add(absl::MakeSpan(all->keys).subspan(layers.begin, layers.size()));
    if (!all->values.empty()) {
      writer.Add(absl::MakeSpan(all->values).subspan(layers.begin, layers.size()));
    }
    return writer.Take();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

absl::StatusOr<std::string> JoinLayers(absl::Span<const absl::string_view> states) {
  try {
    std::vector<State> parts;
    uint32_t n_layers = 0;
    size_t bytes = 0;
    for (const absl::string_view one : states) {
      std::optional<State> state = Read(one);
      if (!state || !Rises(*state) || (!parts.empty() && !Matches(*state, parts.front()))) {
        return absl::InvalidArgumentError("the caches of two stages do not fit together");
      }
      n_layers += static_cast<uint32_t>(state->keys.size());
      bytes += one.size();
      parts.push_back(*std::move(state));
    }
    if (parts.empty()) return absl::InvalidArgumentError("no stage has any caches");
    Writer writer(parts.front(), n_layers, bytes);
    for (const State& part : parts) writer.Add(part.keys);
    for (const State& part : parts) writer.Add(part.values);
    return writer.Take();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

}  // namespace strata
