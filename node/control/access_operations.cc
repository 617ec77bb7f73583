#include "node/control/access_operations.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_stub.h"
#include "nlohmann/json.hpp"
#include "node/api/api_token_file.h"
#include "node/client/key_client.h"
#include "node/control/approvals.h"
#include "node/keys/node_approval.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr int64_t kClusterMs = 5'000;
constexpr absl::Duration kDay = absl::Hours(24);

absl::StatusOr<ClusterKey> OwnKey(const ControlNode& node) {
  if (node.key.open) {
    return absl::FailedPreconditionError("the nodes are open (--open): there is no key to give");
  }
  if (node.key.file.empty() && node.data_dir.empty()) {
    return absl::FailedPreconditionError("this node stores no key (--ephemeral): use another one");
  }
  return FindKey(node.key, node.data_dir);
}

void Approve(ControlContext* context, const std::shared_ptr<Approvals>& approvals,
             const SharedExchange& exchange) {
  auto node = ParseText(exchange->TakeBody(), kApproveFields);
  if (!node.ok()) return FailWith(exchange, node.status());
  context->Start(exchange, [context, approvals, node = *std::move(node)](const SharedExchange& to,
                                                                         CoordinatorClient*) {
    const auto key = OwnKey(context->node);
    if (!key.ok()) return FailWith(to, key.status());
    const std::string id = approvals->Begin();
    // A person who goes has not said that the codes are the same.
    to->responder->OnGone([approvals, id] { approvals->Answer(id, false).IgnoreError(); });
    CallStream stream(to);
    ClusterStub member(context->node.address, kClusterMs);
    const absl::Status status = ApproveNode(&member, node, *key, [&](const std::string& code) {
      stream.Send("code", {{"code", code}, {"approval", id}});
      return approvals->Wait(id);
    });
    approvals->End(id);
    stream.End(status, {{"node", node}});
  });
}

void ConfirmApproval(Approvals* approvals, const SharedExchange& exchange) {
  const auto confirmation = ParseConfirmation(exchange->TakeBody());
  if (!confirmation.ok()) return FailWith(exchange, confirmation.status());
  const absl::Status status = approvals->Answer(confirmation->approval, confirmation->is_same);
  if (!status.ok()) return FailWith(exchange, status);
  AnswerJson(exchange, {{"approval", confirmation->approval}, {"same", confirmation->is_same}});
}

void Remove(ControlContext* context, const SharedExchange& exchange) {
  auto removal = ParseNodeRemoval(exchange->TakeBody());
  if (!removal.ok()) return FailWith(exchange, removal.status());
  removal->address = context->node.address;
  context->Start(exchange, [removal = *std::move(removal)](const SharedExchange& to,
                                                           CoordinatorClient* client) {
    CallStream stream(to);
    const auto removed =
        RemoveNode(client, removal, [&stream](const std::string& note) { stream.Note(note); });
    if (!removed.ok()) return stream.End(removed.status(), {});
    const wire::ChangeKeyResponse& key = removed->key;
    stream.End(
        absl::OkStatus(),
        {{"removed", removed->name},
         {"key_id", key.key_id()},
         {"changed", std::vector<std::string>(key.changed().begin(), key.changed().end())},
         {"left_out", std::vector<std::string>(key.left_out().begin(), key.left_out().end())}});
  });
}

absl::StatusOr<std::string> TokenFile(const ControlContext& context) {
  if (!context.node.data_dir.empty()) return ApiTokenFilePath(context.node.data_dir);
  return absl::FailedPreconditionError("this node stores no tokens (--ephemeral)");
}

void ListTokens(ControlContext* context, const SharedExchange& exchange) {
  const auto file = TokenFile(*context);
  if (!file.ok()) return FailWith(exchange, file.status());
  const auto tokens = ReadApiTokens(*file);
  if (!tokens.ok()) return FailWith(exchange, tokens.status());
  Json list = Json::array();
  for (const ApiToken& token : *tokens) list.push_back(ApiTokenJson(token, WallNow()));
  AnswerJson(exchange, {{"tokens", std::move(list)}});
}

void NewToken(ControlContext* context, const SharedExchange& exchange) {
  const auto wanted = ParseNewToken(exchange->TakeBody());
  if (!wanted.ok()) return FailWith(exchange, wanted.status());
  const auto scopes = ParseApiScopes(wanted->scopes);
  if (!scopes.ok()) return FailWith(exchange, scopes.status());
  const auto file = TokenFile(*context);
  if (!file.ok()) return FailWith(exchange, file.status());
  NewApiToken token = {.name = wanted->name, .scopes = *scopes};
  if (wanted->days > 0) token.limits.expires = token.now + wanted->days * kDay;
  const auto text = AddApiToken(*file, token);
  if (!text.ok()) return FailWith(exchange, text.status());
  AnswerJson(exchange, {{"name", wanted->name}, {"token", text->Reveal()}});
}

void RevokeToken(ControlContext* context, const SharedExchange& exchange) {
  const auto name = ParseText(exchange->TakeBody(), kRevokeTokenFields);
  if (!name.ok()) return FailWith(exchange, name.status());
  const auto file = TokenFile(*context);
  if (!file.ok()) return FailWith(exchange, file.status());
  if (auto s = RevokeApiToken(*file, *name); !s.ok()) return FailWith(exchange, s);
  AnswerJson(exchange, {{"revoked", *name}});
}

}  // namespace

ControlOperations AccessOperations(ControlContext* context) {
  const auto by = [context](void (*run)(ControlContext*, const SharedExchange&)) {
    return [context, run](const SharedExchange& exchange) { run(context, exchange); };
  };
  const auto approvals = std::make_shared<Approvals>();
  return {
      {"POST", "/nodes/approve", ApiScope::kAdmin,
       "Admits a node that waits for the cluster's key. Events: code (code, approval), which a "
       "person compares with the one that the new node shows; then, after POST "
       "/nodes/approve/confirm, done or error",
       kApproveFields, kEventsType,
       [context, approvals](const SharedExchange& exchange) {
         Approve(context, approvals, exchange);
       }},
      {"POST", "/nodes/approve/confirm", ApiScope::kAdmin,
       "Says whether both codes of an approval are the same", kConfirmFields, kJsonType,
       [approvals](const SharedExchange& exchange) { ConfirmApproval(approvals.get(), exchange); }},
      {"POST", "/nodes/remove", ApiScope::kAdmin,
       "Moves all layers off a node, and gives the other nodes a new key. Events: note, then done "
       "or error",
       kRemoveNodeFields, kEventsType, by(Remove)},
      {"GET",
       "/tokens",
       ApiScope::kAdmin,
       "The tokens of this node's APIs, as strata token list --json prints them",
       {},
       kJsonType,
       by(ListTokens)},
      {"POST", "/tokens/new", ApiScope::kAdmin, "Makes a token, whose text is shown this once",
       kNewTokenFields, kJsonType, by(NewToken)},
      {"POST", "/tokens/revoke", ApiScope::kAdmin, "Revokes a token", kRevokeTokenFields, kJsonType,
       by(RevokeToken)}};
}

}  // namespace strata
