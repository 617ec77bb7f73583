#include "shard/device/engine.h"

#ifdef __linux__
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "llama.h"
#include "transport/base/own_program.h"

namespace strata {
namespace {

constexpr size_t kErrorLinesMax = 4;
// libllama's lines: "llama_kv_cache: size = 3.00 MiB ( 4096 cells, …", "llama_memory_recurrent:
// size = …", "sched_reserve: CPU compute buffer size = 5.21 MiB", "load_tensors: CPU_Mapped model
// buffer size = …".
constexpr absl::string_view kCacheMark = ": size = ";
constexpr absl::string_view kCellsMark = " cells, ";
// "llama_kv_cache_iswa: creating     SWA KV cache, size = 256 cells".
constexpr absl::string_view kCreatingMark = ": creating ";
constexpr absl::string_view kWithoutWindowMark = "non-SWA";
constexpr absl::string_view kRecurrentMark = "recurrent";
constexpr absl::string_view kStateMark = " state buffer size = ";
constexpr absl::string_view kComputeMark = " compute buffer size = ";
constexpr absl::string_view kWeightsMark = " model buffer size = ";
constexpr absl::string_view kMappedMark = "Mapped";

thread_local LogCapture* capture = nullptr;

// A message may come in pieces; those after the first have the level CONT.
void OnLog(ggml_log_level level, const char* text, void* /*user_data*/) {
  static thread_local ggml_log_level last_level = GGML_LOG_LEVEL_NONE;
  if (level == GGML_LOG_LEVEL_CONT) {
    level = last_level;
  } else {
    last_level = level;
  }
  if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
  if (capture != nullptr) capture->Add(level, text);
}

double FigureBehind(absl::string_view line, size_t at) {
  const absl::string_view figure = absl::StripLeadingAsciiWhitespace(line.substr(at));
  double value = 0;
  return absl::SimpleAtod(figure.substr(0, figure.find(' ')), &value) ? value : 0;
}

bool IsCpu(ggml_backend_dev_t device) {
  return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Without a graphics device Vulkan has only a software device, which ggml hides unless requested;
// loading it, with LLVM, costs each process 62 MiB and 75 ms.
void LeaveOutSoftwareVulkan() {
#ifdef __linux__
  if (getenv("GGML_VK_VISIBLE_DEVICES") != nullptr) return;
  for (const char* device : {"/dev/dri", "/dev/nvidiactl", "/dev/dxg"}) {
    if (access(device, F_OK) == 0) return;
  }
  // The Vulkan loader's variables, see its LoaderDriverInterface.md.
  setenv("VK_LOADER_DRIVERS_DISABLE", "~all~", /*overwrite=*/0);
#endif
}

}  // namespace

void StartEngine() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(OnLog, nullptr);
    LeaveOutSoftwareVulkan();
    const std::string& bundle = BundleFolder();
    ggml_backend_load_all_from_path(bundle.empty() ? nullptr : (bundle + "/lib/ggml").c_str());
    llama_backend_init();
  });
}

absl::StatusOr<ggml_backend_dev_t> FindDevice(absl::string_view name) {
  StartEngine();
  if (name.empty()) return nullptr;
  std::vector<std::string> names;
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    if (ggml_backend_dev_name(device) == name) return IsCpu(device) ? nullptr : device;
    names.push_back(ggml_backend_dev_name(device));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device \"", name, "\"; there are: ", absl::StrJoin(names, ", ")));
}

LogCapture::LogCapture() : outer_(std::exchange(capture, this)) {}
LogCapture::~LogCapture() { capture = outer_; }

void LogCapture::Add(int level, absl::string_view text) {
  level_ = level;
  line_.append(text);
  for (size_t end = line_.find('\n'); end != std::string::npos; end = line_.find('\n')) {
    std::string line = line_.substr(0, end);
    line_.erase(0, end + 1);
    if (level_ == GGML_LOG_LEVEL_ERROR) {
      errors_.push_back(std::string(absl::StripAsciiWhitespace(line)));
      if (errors_.size() > kErrorLinesMax) errors_.erase(errors_.begin());
    } else if (absl::StrContains(line, "size = ")) {
      sizes_.push_back(std::move(line));
    }
  }
}

std::string LogCapture::errors() const { return absl::StrJoin(errors_, "; "); }

uint64_t LogCapture::Sum(absl::string_view mark,
                         absl::FunctionRef<bool(absl::string_view line)> wanted) const {
  double mib_sum = 0;
  for (const std::string& line : sizes_) {
    const size_t at = line.find(mark);
    if (at == std::string::npos || !wanted(line)) continue;
    mib_sum += FigureBehind(line, at + mark.size());
  }
  return static_cast<uint64_t>(mib_sum * 1024 * 1024);
}

uint64_t LogCapture::CacheBytes() const {
  auto is_cache = [](absl::string_view line) { return absl::StrContains(line, kCellsMark); };
  return Sum(kCacheMark, is_cache) + Sum(kStateMark, [](absl::string_view) { return true; });
}

uint64_t LogCapture::ForgettingBytes(const SlotSamplers& of) const {
  // This line comes before the sizes of its cache.
  bool is_windowed = false;
  double bytes = 0;
  for (const std::string& line : sizes_) {
    if (absl::StrContains(line, kCreatingMark)) {
      is_windowed = !absl::StrContains(line, kWithoutWindowMark);
      continue;
    }
    const size_t at = line.find(kCacheMark);
    const size_t cells_at = line.find(kCellsMark);
    if (at == std::string::npos || cells_at == std::string::npos) continue;
    const double mib = FigureBehind(line, at + kCacheMark.size());
    const double cells = FigureBehind(line, line.find('(', at) + 1);
    if (cells < 1) continue;
    if (absl::StrContains(line, kRecurrentMark)) {
      bytes += mib / of.n_seq_max;
    } else if (is_windowed) {
      bytes += mib * std::min<double>(of.window, cells) / (cells * of.n_caches);
      is_windowed = false;
    }
  }
  return static_cast<uint64_t>(bytes * 1024 * 1024);
}

uint64_t LogCapture::ComputeBytes() const {
  return Sum(kComputeMark, [](absl::string_view) { return true; });
}

uint64_t LogCapture::HostWeightBytes() const {
  // "load_tensors:  Vulkan_Host model buffer size = …", "CPU", "CPU_Mapped", "CPU_REPACK".
  auto is_host = [](absl::string_view line) {
    absl::string_view buffer = line.substr(0, line.find(kWeightsMark));
    buffer.remove_prefix(buffer.rfind(' ') + 1);  // npos + 1 is 0
    return absl::StartsWith(buffer, "CPU") || absl::EndsWith(buffer, "_Host");
  };
  return Sum(kWeightsMark, is_host);
}

uint64_t LogCapture::UnmappedWeightBytes() const {
  auto is_copy = [](absl::string_view line) { return !absl::StrContains(line, kMappedMark); };
  return Sum(kWeightsMark, is_copy);
}

}  // namespace strata
