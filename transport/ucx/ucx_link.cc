#include "transport/ucx/ucx_link.h"

#include <poll.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "transport/base/mutex.h"
#include "transport/link/link_session.h"
#include "transport/ucx/ucx_address.h"
#include "transport/ucx/ucx_core.h"
#include "transport/ucx/ucx_seal.h"
#include "transport/ucx/ucx_tickets.h"
#include "transport/ucx/ucx_wire.h"

namespace strata {
namespace {

using Time = UcxWire::Time;

// The longest sleep, and so the accuracy of timers.
constexpr int kPollMs = 50;
constexpr int kPollIdleMs = 5000;  // the same where all wires are quiet
constexpr int kPollClosingMs = 2;
constexpr int kSettleRounds = 5;
// Calls of ucp_worker_progress() before received messages are handed on.
constexpr int kProgressMax = 64;
// How long a closing endpoint waits for its peer to take the last messages; and all of them at
// stop.
constexpr int64_t kFlushMs = 1000;
constexpr int64_t kStopMs = 2000;

Time Now() { return std::chrono::steady_clock::now(); }
Time In(int64_t ms) { return Now() + std::chrono::milliseconds(ms); }

class UcxLinksImpl final : public UcxLinks {
 public:
  UcxLinksImpl(Options options, std::shared_ptr<UcxCore> core)
      : options_(std::move(options)), core_(std::move(core)) {}
  ~UcxLinksImpl() override;

  absl::Status Listen(const UcxAddress& address);
  absl::StatusOr<UcxTicket> Offer(UcxOfferOptions options, AcceptLinkFn accept) override;
  absl::StatusOr<std::unique_ptr<Link>> Dial(UcxDialOptions options,
                                             Link::Receiver* receiver) override;

 private:
  // The wire of an endpoint, and how far its closing has come.
  struct Endpoint {
    std::shared_ptr<UcxWire> wire;
    std::shared_ptr<bool> flushed;  // set once the wire is over; shared with UCX
    Time close_by;
  };

  template <UcxKind kind>
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t size, const ucp_am_recv_param_t* param);
  static void OnConnection(ucp_conn_request_h request, void* self);
  static void OnError(void* wire, ucp_ep_h ep, ucs_status_t status);

  template <UcxKind kind>
  absl::Status Handle();
  absl::Status CreateEndpoint(ucp_ep_params_t* params, Endpoint endpoint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::StatusOr<UcxWire::Proof> Prove(UcxWire* wire, absl::string_view token);

  void Run();
  // Runs the steps that are due, outside the lock.
  void StepAll();
  void TickAll();
  void AcceptAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void CloseOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Close(ucp_ep_h ep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void BeginStop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Sleep();

  const Options options_;
  const std::shared_ptr<UcxCore> core_;  // shared with wires and the payloads of Lend()
  std::string address_;                  // constant after Listen()

  ucp_listener_h listener_ ABSL_GUARDED_BY(core_->mu) = nullptr;
  std::vector<ucp_conn_request_h> requests_ ABSL_GUARDED_BY(core_->mu);
  std::map<ucp_ep_h, Endpoint> endpoints_ ABSL_GUARDED_BY(core_->mu);
  int settle_ ABSL_GUARDED_BY(core_->mu) = 0;  // short sleeps still due after an endpoint's end
  bool stop_ ABSL_GUARDED_BY(core_->mu) = false;

  UcxTickets tickets_;

  Time last_tick_ = Now();  // thread_
  Time sleeps_until_{};     // thread_: the planned end of the last sleep
  std::thread thread_;      // last, because it uses all of the above
};

// --- UCX's callbacks, on the thread, with the lock held
// --------------------------------------------

template <UcxKind kind>
ucs_status_t UcxLinksImpl::OnMessage(void* self, const void* header, size_t header_bytes,
                                     void* data, size_t size, const ucp_am_recv_param_t* param) {
  auto* links = static_cast<UcxLinksImpl*>(self);
  links->core_->AssertHeld();
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  const auto endpoint = links->endpoints_.find(param->reply_ep);
  if (endpoint == links->endpoints_.end()) return UCS_OK;
  return endpoint->second.wire->OnMessage(
      kind, absl::string_view(static_cast<const char*>(header), header_bytes), data, size,
      param->recv_attr);
}

void UcxLinksImpl::OnConnection(ucp_conn_request_h request, void* self) {
  auto* links = static_cast<UcxLinksImpl*>(self);
  links->core_->AssertHeld();
  links->requests_.push_back(request);  // AcceptAll() takes it before the next progress
}

void UcxLinksImpl::OnError(void* wire, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxWire*>(wire)->OnError(status);
}

// UCX's callbacks for an endpoint that has sent its last messages, and for one that is closed. Both
// may come after the UcxLinks is destroyed.
void OnFlushed(void* request, ucs_status_t, void* flushed) {
  const std::unique_ptr<std::shared_ptr<bool>> done(static_cast<std::shared_ptr<bool>*>(flushed));
  **done = true;
  Ucx().ucp_request_free(request);
}

void OnClosed(void* request, ucs_status_t, void* self) {
  Ucx().ucp_request_free(request);
  auto* core = static_cast<UcxCore*>(self);
  core->AssertHeld();
  --core->closing;
}

// --- tickets, dialling
// ----------------------------------------------------------------------------

template <UcxKind kind>
absl::Status UcxLinksImpl::Handle() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = static_cast<unsigned>(kind);
  param.cb = OnMessage<kind>;
  param.arg = this;
  return FromUcx(Ucx().ucp_worker_set_am_recv_handler(core_->worker(), &param),
                 "UCX accepts no message handler");
}

absl::Status UcxLinksImpl::Listen(const UcxAddress& address) {
  MutexLock lock(&core_->mu);
  for (const absl::Status& status :
       {Handle<UcxKind::kOpen>(), Handle<UcxKind::kFrame>(), Handle<UcxKind::kLongFrame>(),
        Handle<UcxKind::kMore>(), Handle<UcxKind::kPing>(), Handle<UcxKind::kEnd>()}) {
    if (!status.ok()) return status;
  }
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address.bytes);
  params.sockaddr.addrlen = address.size;
  params.conn_handler.cb = OnConnection;
  params.conn_handler.arg = this;
  ucs_status_t status = Ucx().ucp_listener_create(core_->worker(), &params, &listener_);
  if (status != UCS_OK) {
    listener_ = nullptr;
    return FromUcx(status, absl::StrCat("UCX cannot listen on ", UcxAddressText(address.bytes)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = Ucx().ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) return FromUcx(status, "UCX does not report its listening address");
  address_ = UcxAddressText(attributes.sockaddr);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::StatusOr<UcxTicket> UcxLinksImpl::Offer(UcxOfferOptions options, AcceptLinkFn accept) {
  return tickets_.Give(address_, options, std::move(accept), Now());
}

absl::StatusOr<UcxWire::Proof> UcxLinksImpl::Prove(UcxWire* wire, absl::string_view token) {
  absl::StatusOr<UcxTickets::Ticket> ticket = tickets_.Take(token, Now());
  if (!ticket.ok()) return ticket.status();
  VersionPolicy policy;
  policy.allow_mixed = ticket->options.allow_mixed_versions;
  UcxWire::Proof proof;
  proof.key = std::move(ticket->key);
  proof.hello_timeout_ms = ticket->options.hello_timeout_ms;
  proof.session = LinkSession::Acceptor(wire, policy, std::move(ticket->accept));
  return proof;
}

absl::Status UcxLinksImpl::CreateEndpoint(ucp_ep_params_t* params, Endpoint endpoint) {
  params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params->err_handler.cb = OnError;
  params->err_handler.arg = endpoint.wire.get();
  ucp_ep_h ep = nullptr;
  const ucs_status_t status = Ucx().ucp_ep_create(core_->worker(), params, &ep);
  if (status != UCS_OK) return FromUcx(status, "UCX cannot create an endpoint");
  endpoint.wire->SetEndpoint(ep);
  endpoints_.emplace(ep, std::move(endpoint));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Link>> UcxLinksImpl::Dial(UcxDialOptions options,
                                                         Link::Receiver* receiver) {
  const UcxTicket& ticket = options.ticket;
  if (ticket.token.size() != kUcxTokenBytes || ticket.key.size() != kUcxKeyBytes) {
    return absl::InvalidArgumentError("a ticket's token or key has the wrong size");
  }
  const absl::StatusOr<UcxAddress> address = ParseUcxAddress(ticket.address);
  if (!address.ok()) return address.status();
  auto wire = std::make_shared<UcxWire>(core_, ticket.address, thread_.get_id());
  VersionPolicy policy;
  policy.allow_mixed = options.allow_mixed_versions;
  const std::shared_ptr<LinkSession> session =
      LinkSession::Dialler(wire.get(), std::move(options.hello), policy, receiver);
  wire->StartDialling(ticket.key, session, std::move(options.on_break));
  absl::Status status;
  {
    MutexLock lock(&core_->mu);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address->bytes);
    params.sockaddr.addrlen = address->size;
    status = stop_ ? absl::UnavailableError("links over UCX are being shut down")
                   : CreateEndpoint(&params, Endpoint{wire});
  }
  if (status.ok()) {
    wire->SendOpen(ticket.token);
    session->Start();
    absl::StatusOr<std::unique_ptr<Link>> link = session->AwaitOpen(options.timeout_ms);
    if (link.ok()) return link;
    status = link.status();
  }
  return absl::Status(status.code(),
                      absl::StrCat("link over UCX to ", ticket.address, ": ", status.message()));
}

// --- the thread
// -----------------------------------------------------------------------------------

void UcxLinksImpl::Run() {
  Time tick = Now();
  Time stop_by = Time::max();
  while (true) {
    std::vector<std::unique_ptr<UcxOutgoing>> sent;
    {
      MutexLock lock(&core_->mu);
      for (int i = 0; i < kProgressMax && Ucx().ucp_worker_progress(core_->worker()) != 0; ++i) {
        if (!core_->ready.empty()) break;  // hand received messages on first
      }
      core_->TakeBack();
      AcceptAll();
      CloseOver();
      sent.swap(core_->sent);
      if (stop_ && stop_by == Time::max()) {
        stop_by = In(kStopMs);
        BeginStop();
      }
      if (stop_ && endpoints_.empty() && core_->closing == 0 && settle_ == 0) return;
      if (stop_ && Now() >= stop_by) {
        for (const auto& [ep, endpoint] : endpoints_) Close(ep);
        endpoints_.clear();
        return;
      }
    }
    sent.clear();
    StepAll();
    const Time now = Now();
    if (now >= tick) {
      tick = now + std::chrono::milliseconds(kPollMs);
      TickAll();
    }
    Sleep();
  }
}

void UcxLinksImpl::StepAll() {
  while (true) {
    std::shared_ptr<UcxWire> wire;
    {
      MutexLock lock(&core_->mu);
      if (core_->ready.empty()) return;
      wire = std::move(core_->ready.front());
      core_->ready.pop_front();
      wire->in_ready = false;
    }
    while (wire->Step()) {
    }
  }
}

void UcxLinksImpl::TickAll() {
  std::vector<std::shared_ptr<UcxWire>> wires;
  {
    MutexLock lock(&core_->mu);
    for (const auto& [ep, endpoint] : endpoints_) wires.push_back(endpoint.wire);
  }
  const Time now = Now();
  const Time last_tick = std::max(last_tick_, sleeps_until_);
  for (const std::shared_ptr<UcxWire>& wire : wires) wire->Tick(now, last_tick);
  last_tick_ = now;
}

void UcxLinksImpl::AcceptAll() {
  for (ucp_conn_request_h request : std::exchange(requests_, {})) {
    size_t unproven = 0, silent = 0;
    for (const auto& [ep, endpoint] : endpoints_) {
      unproven += endpoint.wire->proven() ? 0 : 1;
      silent += endpoint.wire->proven() && !endpoint.wire->greeted() ? 1 : 0;
    }
    if (stop_ || unproven >= kUcxUnprovenMax || silent >= kUcxSilentMax) {
      Ucx().ucp_listener_reject(listener_, request);
      continue;
    }
    ucp_conn_request_attr_t attributes{};
    attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
    const bool known = Ucx().ucp_conn_request_query(request, &attributes) == UCS_OK;
    auto wire = std::make_shared<UcxWire>(
        core_, known ? UcxAddressText(attributes.client_address) : "an unknown peer",
        thread_.get_id());
    wire->StartAccepting(
        [this](UcxWire* self, absl::string_view token) { return Prove(self, token); },
        In(options_.prove_timeout_ms));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    const absl::Status status = CreateEndpoint(&params, Endpoint{std::move(wire)});
    if (!status.ok()) LOG_EVERY_N_SEC(WARNING, 1) << "refused a link over UCX: " << status;
  }
}

void UcxLinksImpl::CloseOver() {
  for (auto it = endpoints_.begin(); it != endpoints_.end();) {
    auto& [ep, endpoint] = *it;
    if (!endpoint.wire->over()) {
      ++it;
      continue;
    }
    if (endpoint.flushed == nullptr && endpoint.wire->in_order()) {
      endpoint.flushed = std::make_shared<bool>(false);
      endpoint.close_by = In(kFlushMs);
      auto done = std::make_unique<std::shared_ptr<bool>>(endpoint.flushed);
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      param.cb.send = OnFlushed;
      param.user_data = done.get();
      // OnFlushed() owns it, unless the flush is done at once.
      std::shared_ptr<bool>* const given = done.release();
      ucs_status_ptr_t request = Ucx().ucp_ep_flush_nbx(ep, &param);
      if (request == nullptr || UCS_PTR_IS_ERR(request)) {
        done.reset(given);
        *endpoint.flushed = true;
      }
    }
    if (endpoint.wire->in_order() && !*endpoint.flushed && Now() < endpoint.close_by) {
      ++it;
      continue;
    }
    Close(ep);
    it = endpoints_.erase(it);
  }
}

void UcxLinksImpl::Close(ucp_ep_h ep) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = OnClosed;
  param.user_data = core_.get();
  settle_ = kSettleRounds;
  void* const request = Ucx().ucp_ep_close_nbx(ep, &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) ++core_->closing;
}

void UcxLinksImpl::BeginStop() {
  for (ucp_conn_request* const request : std::exchange(requests_, {})) {
    Ucx().ucp_listener_reject(listener_, request);
  }
  if (listener_ != nullptr) Ucx().ucp_listener_destroy(std::exchange(listener_, nullptr));
  for (auto& [ep, endpoint] : endpoints_) {
    if (!endpoint.wire->over()) {
      endpoint.wire->Break(absl::UnavailableError("links over UCX are being shut down"));
    }
  }
}

void UcxLinksImpl::Sleep() {
  bool busy = false;
  int wait_ms = kPollIdleMs;
  {
    MutexLock lock(&core_->mu);
    // Once armed, UCX signals its descriptor when there is something to progress.
    if (!options_.spin && core_->ready.empty() && core_->sent.empty()) {
      busy = Ucx().ucp_worker_arm(core_->worker()) == UCS_ERR_BUSY;
    }
    busy = busy || !core_->ready.empty() || !core_->sent.empty();
    const Time now = Now();
    for (const auto& [ep, endpoint] : endpoints_) {
      if (!endpoint.wire->quiet(now)) wait_ms = kPollMs;
    }
    if (stop_) wait_ms = kPollMs;
    // UCX does not signal its descriptor for the rest of the work of closing an endpoint.
    if (core_->closing > 0 || settle_ > 0) wait_ms = kPollClosingMs;
    if (settle_ > 0) --settle_;
    for (const auto& [ep, endpoint] : endpoints_) {
      if (endpoint.wire->over()) wait_ms = endpoint.flushed == nullptr ? 0 : kPollClosingMs;
    }
  }
  if (busy) return;
  if (options_.spin) {
    std::this_thread::yield();  // and let others have the lock
    return;
  }
  pollfd event{core_->event_fd(), POLLIN, 0};
  sleeps_until_ = In(wait_ms);
  poll(&event, 1, wait_ms);
}

UcxLinksImpl::~UcxLinksImpl() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&core_->mu);
    stop_ = true;
  }
  core_->Wake();
  thread_.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxLinks>> UcxLinks::Start(Options options) {
  const bool v6 = options.host.find(':') != std::string::npos;
  const absl::StatusOr<UcxAddress> address = ParseUcxAddress(
      v6 ? absl::StrCat("[", options.host, "]:0") : absl::StrCat(options.host, ":0"));
  if (!address.ok()) return address.status();
  const absl::StatusOr<std::string> interface = UcxInterface(*address);
  if (!interface.ok()) return interface.status();
  absl::StatusOr<std::shared_ptr<UcxCore>> core =
      UcxCore::Make({.transports = options.transports, .devices = UcxDevices(*interface)});
  if (!core.ok()) return core.status();
  auto links = std::make_unique<UcxLinksImpl>(std::move(options), *std::move(core));
  absl::Status status = links->Listen(*address);
  if (!status.ok()) return status;
  return links;
}

}  // namespace strata
