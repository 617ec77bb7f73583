#include "shard/serving/link_selector.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/node.grpc.pb.h"
#include "shard/device/host_identity.h"
#include "transport/base/utf8.h"
#include "transport/link/grpc_link.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/security/trusted_networks.h"

namespace strata {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr absl::Duration kOfferTimeout = absl::Seconds(2);
// How long an acceptor that took a link over UCX may take to notice that it failed here: its
// silence, and a step that its stage computes meanwhile.
constexpr std::chrono::milliseconds kHalfOpenMax(1500);
constexpr std::chrono::milliseconds kHalfOpenPoll(50);

absl::StatusOr<absl::Duration> TimeOver(
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Link>>(Link::Receiver*)> dial) {
  RoundTripTimer timer;
  absl::StatusOr<std::unique_ptr<Link>> link = dial(&timer);
  if (!link.ok()) return link.status();
  return timer.Measure(link->get());
}

wire::Hello ProbeHello() {
  wire::Hello hello;
  hello.set_probe(true);
  return hello;
}

}  // namespace

std::string WhyNotOverUcx(const TransportLatency& times) {
  if (times.ucx > kUcxTripMax) {
    return absl::StrCat("16 KiB and back take ", absl::FormatDuration(times.ucx),
                        " over UCX, which is for faster networks");
  }
  if (times.grpc < times.ucx) {
    return absl::StrCat("16 KiB and back take ", absl::FormatDuration(times.ucx), " over UCX, ",
                        absl::FormatDuration(times.grpc), " over gRPC");
  }
  return "";
}

LinkSelector::LinkSelector(LinkSelectorOptions options, AcceptFn accept)
    : options_(std::move(options)), accept_(std::move(accept)), host_(HostIdentity()) {}

LinkSelector::~LinkSelector() { Stop(); }

void LinkSelector::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    while (accepting_ > 0) accepted_.Wait(&mu_);
  }
  sink_.Clear();
}

absl::StatusOr<AcceptedLink> LinkSelector::Accept(const wire::Hello& peer) {
  {
    MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the worker stops");
    ++accepting_;
  }
  absl::StatusOr<AcceptedLink> accepted = peer.probe() ? sink_.Accept() : accept_(peer);
  MutexLock lock(&mu_);
  if (--accepting_ == 0) accepted_.NotifyAll();
  return accepted;
}

wire::LinkPlace LinkSelector::Place() const {
  wire::LinkPlace place;
  place.set_host(host_);
  for (const TrustedAddress& address : AddressesOf(options_.trusted_interfaces)) {
    place.add_trusted(TrustedAddressText(address));
  }
  return place;
}

absl::StatusOr<UcxLinks*> LinkSelector::LinksOn(const std::string& host) {
  MutexLock lock(&links_mu_);
  auto found = links_.find(host);
  if (found == links_.end()) {
    UcxLinks::Options options;
    options.host = host;
    options.transports = host == kLoopback ? kUcxSharedMemory : kUcxNetwork;
    options.spin = options_.spin;
    found = links_.emplace(host, UcxLinks::Start(options)).first;
    if (!found->second.ok() && !absl::IsUnimplemented(found->second.status())) {
      LOG(WARNING) << "no links over UCX at " << host << ": " << found->second.status();
    }
  }
  if (!found->second.ok()) return found->second.status();
  return found->second->get();
}

absl::StatusOr<UcxTicket> LinkSelector::GiveTicket(const std::string& host) {
  const absl::StatusOr<UcxLinks*> links = LinksOn(host);
  if (!links.ok()) return links.status();
  UcxOfferOptions offer;
  offer.allow_mixed_versions = options_.allow_mixed_versions;
  return (*links)->Offer(offer, [this](const wire::Hello& peer) { return Accept(peer); });
}

// --- offers to diallers
// ----------------------------------------------------------------------------

wire::OfferLinkResponse LinkSelector::Offer(const wire::OfferLinkRequest& request) {
  sink_.ReclaimClosedLinks();
  wire::OfferLinkResponse response;
  if (!options_.ucx) {
    response.set_why_not("the next worker was started with --no-ucx");
    return response;
  }
  std::string host;
  if (!host_.empty() && host_ == request.place().host()) {
    host = kLoopback;
    response.set_from_host(kLoopback);
  }
  if (host.empty()) {
    const std::vector<TrustedAddress> mine = AddressesOf(options_.trusted_interfaces);
    for (const std::string& address : request.place().trusted()) {
      const absl::StatusOr<TrustedAddress> theirs = ParseTrustedAddress(address);
      if (!theirs.ok()) continue;
      const auto shared = std::find_if(mine.begin(), mine.end(), [&](const TrustedAddress& one) {
        return SameNetwork(one, *theirs);
      });
      if (shared == mine.end()) continue;
      host = shared->host;
      response.set_from_host(theirs->host);
      break;
    }
  }
  if (host.empty()) {
    response.set_why_not("another machine, and both name no network that they trust in common");
    return response;
  }
  const absl::StatusOr<UcxTicket> ticket = GiveTicket(host);
  if (!ticket.ok()) {
    response.set_why_not(ValidUtf8(ticket.status().message()));
    return response;
  }
  response.set_address(ticket->address);
  response.set_token(ticket->token);
  response.set_key(ticket->key);
  return response;
}

// --- dialling
// -------------------------------------------------------------------------------------

absl::StatusOr<LinkSelector::DialResult> LinkSelector::Dial(DialOptions options,
                                                            Link::Receiver* receiver) {
  DialResult dialled;
  bool ucx_failed = false;
  absl::Status why_not;
  if (options.to_worker) {
    absl::StatusOr<std::unique_ptr<Link>> link = DialUcx(options, receiver, &ucx_failed);
    if (link.ok()) {
      dialled.link = *std::move(link);
      return dialled;
    }
    why_not = link.status();
    dialled.note = std::string(why_not.message());
  }
  const auto dial = [&] {
    return DialGrpcLink({.address = options.address,
                         .hello = options.hello,
                         .allow_mixed_versions = options_.allow_mixed_versions},
                        receiver);
  };
  auto link = dial();
  const auto give_up = std::chrono::steady_clock::now() + kHalfOpenMax;
  while (ucx_failed && absl::IsUnavailable(link.status()) &&
         std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kHalfOpenPoll);
    link = dial();
  }
  if (!link.ok()) return link.status();  // not because of UCX: the peer is gone, or refuses
  if (ucx_failed) Avoid(options.address, why_not);
  dialled.link = *std::move(link);
  return dialled;
}

absl::StatusOr<std::unique_ptr<Link>> LinkSelector::DialUcx(const DialOptions& options,
                                                            Link::Receiver* receiver,
                                                            bool* failed) {
  if (!options_.ucx) return absl::UnavailableError("this worker was started with --no-ucx");
  LinkChoice choice = GetChoice(options.address);
  if (!choice.measured && options_.measure && !IsAvoided(choice)) {
    const absl::StatusOr<LinkChoice> measured = MeasureLinks(options.address);
    if (!measured.ok()) return measured.status();
    choice = StoreMeasurement(options.address, *measured);
  }
  if (IsAvoided(choice)) {
    return absl::UnavailableError(absl::StrCat("UCX failed: ", choice.failure));
  }
  if (choice.measured) {
    const std::string why_not = WhyNotOverUcx(choice.times);
    if (!why_not.empty()) return absl::UnavailableError(why_not);
  }
  const absl::StatusOr<wire::OfferLinkResponse> offer = RequestOffer(options.address);
  if (!offer.ok()) return offer.status();
  // Until the link is open, Dial() handles its failures.
  const auto is_open = std::make_shared<std::atomic<bool>>(false);  // with the link's own thread
  auto link = DialOffered(*offer, options.hello, receiver,
                          [this, address = options.address, is_open](const absl::Status& why) {
                            if (*is_open) Avoid(address, why);
                          });
  *is_open = link.ok();
  *failed = !link.ok();
  return link;
}

absl::StatusOr<LinkSelector::LinkChoice> LinkSelector::MeasureLinks(const std::string& address) {
  const absl::StatusOr<wire::OfferLinkResponse> offer = RequestOffer(address);
  if (!offer.ok()) return offer.status();
  LinkChoice choice;
  const absl::StatusOr<absl::Duration> ucx = TimeOver([&](Link::Receiver* receiver) {
    // A link that breaks while it is measured fails the measurement; behind that it is closed.
    return DialOffered(*offer, ProbeHello(), receiver, [](const absl::Status&) {});
  });
  choice.times.ucx = ucx.value_or(absl::ZeroDuration());
  if (choice.times.ucx > kUcxTripMax) {
    choice.measured = true;
    LOG(INFO) << "to " << address << ": 16 KiB and back take " << choice.times.ucx
              << " over UCX: too long";
    return choice;
  }
  const absl::StatusOr<absl::Duration> grpc = TimeOver([&](Link::Receiver* receiver) {
    return DialGrpcLink({.address = address,
                         .hello = ProbeHello(),
                         .allow_mixed_versions = options_.allow_mixed_versions},
                        receiver);
  });
  if (!grpc.ok()) return grpc.status();
  if (!ucx.ok()) {
    // The peer's limit on concurrent probes is no failure of UCX.
    if (!absl::IsResourceExhausted(ucx.status())) Avoid(address, ucx.status());
    return ucx.status();
  }
  choice.measured = true;
  choice.times.grpc = *grpc;
  LOG(INFO) << "to " << address << ": 16 KiB and back take " << choice.times.ucx << " over UCX, "
            << choice.times.grpc << " over gRPC";
  return choice;
}

absl::StatusOr<wire::OfferLinkResponse> LinkSelector::RequestOffer(const std::string& address) {
  const auto worker = wire::Worker::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kOfferTimeout));
  wire::OfferLinkRequest request;
  *request.mutable_place() = Place();
  wire::OfferLinkResponse offer;
  const absl::Status status = FromGrpc(worker->OfferLink(&context, request, &offer));
  if (!status.ok()) {
    return absl::Status(
        status.code(), absl::StrCat("the next worker offers no link over UCX: ", status.message()));
  }
  if (offer.address().empty()) return absl::UnavailableError(offer.why_not());
  // A peer must not make this machine listen on an address that the operator did not trust.
  const auto& trusted = request.place().trusted();
  const bool may = offer.from_host() == kLoopback ||
                   std::any_of(trusted.begin(), trusted.end(), [&](const std::string& entry) {
                     const auto one = ParseTrustedAddress(entry);
                     return one.ok() && one->host == offer.from_host();
                   });
  if (!may) return absl::UnavailableError("the next worker offers an address that is not trusted");
  return offer;
}

absl::StatusOr<std::unique_ptr<Link>> LinkSelector::DialOffered(
    const wire::OfferLinkResponse& offer, wire::Hello hello, Link::Receiver* receiver,
    std::function<void(const absl::Status& why)> on_break) {
  const absl::StatusOr<UcxLinks*> links = LinksOn(offer.from_host());
  if (!links.ok()) return links.status();
  UcxDialOptions dial;
  dial.ticket = {offer.address(), offer.token(), offer.key()};
  dial.hello = std::move(hello);
  dial.allow_mixed_versions = options_.allow_mixed_versions;
  dial.timeout_ms = options_.ucx_dial_ms;
  dial.on_break = std::move(on_break);
  return (*links)->Dial(std::move(dial), receiver);
}

// --- measurements and failures
// ------------------------------------------------------------------------

LinkSelector::LinkChoice LinkSelector::GetChoice(const std::string& address) {
  MutexLock lock(&mu_);
  const auto found = choices_.find(address);
  return found == choices_.end() ? LinkChoice{} : found->second;
}

LinkSelector::LinkChoice& LinkSelector::ChoiceFor(const std::string& address) {
  if (choices_.size() >= kLinkChoicesMax && choices_.count(address) == 0) choices_.clear();
  return choices_[address];
}

LinkSelector::LinkChoice LinkSelector::StoreMeasurement(const std::string& address,
                                                        const LinkChoice& measured) {
  MutexLock lock(&mu_);
  LinkChoice& choice = ChoiceFor(address);
  choice.measured = measured.measured;
  choice.times = measured.times;
  return choice;  // with a failure, if another link has broken since
}

void LinkSelector::Avoid(const std::string& address, const absl::Status& why) {
  LOG(WARNING) << "links to " << address << " go over gRPC for the next " << kUcxAvoided.count()
               << " minutes: " << why;
  MutexLock lock(&mu_);
  LinkChoice& choice = ChoiceFor(address);
  choice.failure = std::string(why.message());
  choice.avoid_until = std::chrono::steady_clock::now() + kUcxAvoided;
}

}  // namespace strata
