#include "transport/ucx/ucx_core.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_wire.h"

namespace strata {
namespace {

// Without this handler UCX would write to stdout, where other programs read our results.
ucs_log_func_rc_t Log(const char* file, unsigned line, const char*, ucs_log_level_t level,
                      const ucs_log_component_config_t*, const char* format, va_list values) {
  // UCX's warnings and errors are mostly about peers that left; the link itself reports those.
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  std::vsnprintf(text, sizeof text, format, values);
  if (level == UCS_LOG_LEVEL_FATAL) {
    LOG(ERROR).AtLocation(file, static_cast<int>(line)) << "ucx: " << text;
  } else {
    VLOG(1).AtLocation(file, static_cast<int>(line)) << "ucx: " << text;
  }
  return UCS_LOG_FUNC_RC_STOP;
}

absl::Status SetUpProcess() {
  absl::Status status = LoadUcx();
  if (!status.ok()) return status;
  static std::once_flag once;
  std::call_once(once, [] {
    Ucx().ucs_log_push_handler(Log);
    // The worker reports crashes, not the library.
    Ucx().ucs_global_opts_set_value("HANDLE_ERRORS", "none");
  });
  return status;
}

}  // namespace

absl::Status FromUcx(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", Ucx().ucs_status_string(status)));
}

struct UcxCore::Loan {
  Loan(std::shared_ptr<UcxCore> from, void* d) : core(std::move(from)), data(d) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() {
    MutexLock lock(&core->lent_mu_);
    core->unneeded_.push_back(data);
  }
  const std::shared_ptr<UcxCore> core;  // shared with all loans and the core's users
  void* const data;
};

absl::StatusOr<std::shared_ptr<UcxCore>> UcxCore::Make(const Options& options) {
  absl::Status status = SetUpProcess();
  if (!status.ok()) return status;
  std::shared_ptr<UcxCore> core(new UcxCore);
  status = core->Start(options);
  if (!status.ok()) return status;
  return core;
}

absl::Status UcxCore::Start(const Options& options) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = Ucx().ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return FromUcx(status, "UCX's configuration cannot be read");
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", options.transports.c_str()},
      {"NET_DEVICES", options.devices.c_str()},
      // The port of a link that has just closed can be used again.
      {"TCP_CM_REUSEADDR", "y"},
      {"CM_REUSEADDR", "y"},
      // A large payload in fewer pieces, and so in fewer wake-ups.
      {"TCP_TX_SEG_SIZE", "64k"},
      {"TCP_RX_SEG_SIZE", "256k"},
      // Over shared memory a decoded row (8192 f32 and the frame's header) is one piece: each
      // further piece may wake the receiver again. There is room for 64 of them, 3 MB a process.
      {"MM_SEG_SIZE", "36k"},
      {"MM_FIFO_SIZE", "64"},
      {"MM_RX_BUFS_GROW", "64"},
      // Shared memory detects dead peers too.
      {"MM_ERROR_HANDLING", "y"},
  };
  for (const auto& [name, value] : settings) {
    status = Ucx().ucp_config_modify(config, name, value);
    if (status != UCS_OK) break;
  }
  if (status != UCS_OK) {
    Ucx().ucp_config_release(config);
    return FromUcx(status, "UCX rejects its settings");
  }

  // UCX 1.18 aborts where an RDMA device reports twice that a connection has ended
  // (openucx/ucx#10432). Later versions ignore these events by default; a UCX without verbs does
  // not know the setting.
  Ucx().ucp_config_modify(config, "IB_ASYNC_EVENTS", "n");

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "strata";
  status = Ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  Ucx().ucp_config_release(config);
  if (status != UCS_OK) {
    context_ = nullptr;
    return FromUcx(status, absl::StrCat("UCX does not start with ", options.transports, " on ",
                                        options.devices));
  }

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.am_alignment = kUcxBufferAlign;
  status = Ucx().ucp_worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return FromUcx(status, "UCX cannot create a worker");
  }
  return FromUcx(Ucx().ucp_worker_get_efd(worker_, &event_fd_), "UCX has no event descriptor");
}

UcxCore::~UcxCore() {
  {
    MutexLock lock(&mu);
    if (worker_ != nullptr) TakeBack();
  }
  if (worker_ != nullptr) Ucx().ucp_worker_destroy(worker_);
  if (context_ != nullptr) Ucx().ucp_cleanup(context_);
}

Payload UcxCore::Lend(void* data, size_t size) {
  return Payload::Share(std::make_shared<Loan>(shared_from_this(), data), data, size);
}

void UcxCore::TakeBack() {
  std::vector<void*> unneeded;
  {
    MutexLock lock(&lent_mu_);
    unneeded.swap(unneeded_);
  }
  for (void* data : unneeded) Ucx().ucp_am_data_release(worker_, data);
}

void UcxCore::Ready(std::shared_ptr<UcxWire> wire) {
  if (std::exchange(wire->in_ready, true)) return;
  ready.push_back(std::move(wire));
}

}  // namespace strata
