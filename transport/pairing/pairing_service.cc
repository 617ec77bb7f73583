#include "transport/pairing/pairing_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/pairing.grpc.pb.h"
#include "transport/pairing/pairing_member.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/grpc_threads.h"

namespace strata {
namespace {

class PairingService final : public wire::Pairing::CallbackService {
 public:
  explicit PairingService(PairingGuest* guest) : guest_(guest) {}

  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context,
                                  const wire::PairingBeginRequest* request,
                                  wire::PairingBeginResponse* response) override {
    return Answer(context, guest_->Begin(*request), response);
  }
  grpc::ServerUnaryReactor* Disclose(grpc::CallbackServerContext* context,
                                     const wire::PairingDiscloseRequest* request,
                                     wire::PairingDiscloseResponse* response) override {
    return Answer(context, guest_->Disclose(*request), response);
  }
  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext* context,
                                  const wire::PairingAdmitRequest* request,
                                  wire::PairingAdmitResponse* response) override {
    return Answer(context, guest_->Admit(*request), response);
  }
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context,
                                   const wire::PairingRefuseRequest* request,
                                   wire::PairingRefuseResponse* response) override {
    return Answer(context, guest_->Refuse(*request), response);
  }

 private:
  template <typename Response>
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          absl::StatusOr<Response> answer, Response* response) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const grpc::Status status = ToGrpc(answer.status());
    if (answer.ok()) *response = *std::move(answer);
    reactor->Finish(status);
    return reactor;
  }

  PairingGuest* const guest_;
};

// A connection of its own, straight to the guest, that accepts no larger messages than a pairing's.
std::shared_ptr<grpc::Channel> MakePlainChannel(const std::string& address) {
  KeepGrpcThreads();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kPairingMessageBytesMax);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each call is made once: a second Disclose would be refused.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// The calls of one pairing.
class Caller {
 public:
  Caller(const std::string& address, absl::Duration timeout)
      : stub_(wire::Pairing::NewStub(MakePlainChannel(address))), timeout_(timeout) {}

  template <typename Request, typename Response>
  using Method = grpc::Status (wire::Pairing::Stub::*)(grpc::ClientContext*, const Request&,
                                                       Response*);

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineIn(timeout_));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    if (IsUnknownCall(status)) {
      return absl::FailedPreconditionError(
          "the program there takes no pairings: it has a key already, or is another program");
    }
    return FromGrpc(status);
  }

 private:
  const std::unique_ptr<wire::Pairing::Stub> stub_;
  const absl::Duration timeout_;
};

using Stub = wire::Pairing::Stub;

absl::Status Compare(Caller* caller, PairingMember* member) {
  const absl::StatusOr<wire::PairingBeginRequest> begin = member->MakeBegin();
  if (!begin.ok()) return begin.status();
  const auto begun = caller->Call(&Stub::Begin, *begin);
  if (!begun.ok()) return begun.status();
  const absl::StatusOr<wire::PairingDiscloseRequest> disclose = member->OnBegun(*begun);
  if (!disclose.ok()) return disclose.status();
  const auto disclosed = caller->Call(&Stub::Disclose, *disclose);
  if (!disclosed.ok()) return disclosed.status();
  return member->OnDisclosed(*disclosed);
}

absl::Status Admit(Caller* caller, PairingMember* member, const ClusterKey& key) {
  const absl::StatusOr<wire::PairingAdmitRequest> admit = member->MakeAdmit(key);
  if (!admit.ok()) return admit.status();
  const auto admitted = caller->Call(&Stub::Admit, *admit);
  if (absl::IsUnavailable(admitted.status()) || absl::IsDeadlineExceeded(admitted.status())) {
    return absl::Status(admitted.status().code(),
                        absl::StrCat(admitted.status().message(),
                                     "; check on the other machine itself whether it has the key"));
  }
  if (!admitted.ok()) return admitted.status();
  return member->OnAdmitted(*admitted);
}

absl::Status Pair(Caller* caller, PairingMember* member, AskPersonFn& ask_person,
                  const ClusterKey& key) {
  if (absl::Status status = Compare(caller, member); !status.ok()) return status;
  const absl::StatusOr<bool> yes = ask_person(member->code());
  if (!yes.ok()) return yes.status();
  if (!*yes) return absl::CancelledError("the person did not confirm the code");
  return Admit(caller, member, key);
}

}  // namespace

std::unique_ptr<grpc::Service> MakePairingService(PairingGuest* guest) {
  return std::make_unique<PairingService>(guest);
}

absl::Status PairWith(const PairWithOptions& options, AskPersonFn ask_person,
                      const ClusterKey& key) {
  absl::StatusOr<PairingMember> member = PairingMember::New(options.self, options.clock);
  if (!member.ok()) return member.status();
  Caller caller(options.address, options.call_timeout);
  absl::Status status = Pair(&caller, &*member, ask_person, key);
  if (status.ok()) return status;
  // So that the code disappears from the guest's screen; without this it does after kPairingUs.
  if (const absl::StatusOr<wire::PairingRefuseRequest> refuse = member->MakeRefuse(); refuse.ok()) {
    (void)caller.Call(&Stub::Refuse, *refuse);
  }
  return absl::Status(status.code(), absl::StrCat(options.address, ": ", status.message()));
}

}  // namespace strata
