#include "node/control/control_api.h"

#include <set>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/control/approvals.h"
#include "node/control/control_request.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::json;

ControlApi::Options Options(bool view_only = false) {
  return {.node = {.id = "7f", .name = "attic"},
          .view_only = view_only,
          .feed = {.origin = "a", .fetch = []() -> absl::StatusOr<ClusterState> {
                     return absl::UnavailableError("");
                   }}};
}

std::set<std::string> Described(const Json& api) {
  std::set<std::string> operations;
  for (const auto& [path, methods] : api["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      const Json scopes =
          operation["security"].empty() ? Json("public") : operation["security"][0]["token"][0];
      operations.insert(
          absl::StrCat(absl::AsciiStrToUpper(method), " ", path, " ", scopes.get<std::string>()));
    }
  }
  return operations;
}

std::set<std::string> Served(const ApiRoutes& routes, const std::string& server) {
  std::set<std::string> operations;
  for (const ApiRoute& route : routes) {
    EXPECT_EQ(route.path.substr(0, server.size()), server);
    operations.insert(absl::StrCat(route.method, " ", route.path.substr(server.size()), " ",
                                   route.is_public ? "public" : ApiScopeName(route.scope)));
  }
  return operations;
}

TEST(ControlApi, DescribesItsRoutes) {
  ControlApi control(Options());
  const Json api = control.OpenApi();
  EXPECT_EQ(Described(api), Served(control.Routes(), api["servers"][0]["url"]));
  EXPECT_EQ(Described(api).count("POST /load admin"), 1u);
  EXPECT_EQ(Described(api).count("GET /cluster view"), 1u);
}

TEST(ControlApi, ChangesNothingWhereItIsForViewingOnly) {
  ControlApi control(Options(/*view_only=*/true));
  for (const ApiRoute& route : control.Routes()) {
    EXPECT_NE(route.scope, ApiScope::kAdmin) << route.path;
  }
}

// A body with all fields of the description, each of its type.
Json BodyOf(const Json& schema) {
  Json body = Json::object();
  for (const auto& [name, field] : schema["properties"].items()) {
    const std::string type = field["type"];
    body[name] = name == "speculate" ? Json("off")  // one of a few words
                 : type == "string"  ? Json("x")
                 : type == "integer" ? Json(7)
                                     : Json(true);
  }
  return body;
}

TEST(ControlApi, TakesTheFieldsThatItDescribesAndNoOthers) {
  ControlApi control(Options());
  const Json api = control.OpenApi();
  const auto parse = [](const std::string& path, const std::string& body) -> absl::Status {
    if (path == "/plan") return ParsePlan(body).status();
    if (path == "/load") return ParseLoad(body).status();
    if (path == "/unload") return ParseText(body, kUnloadFields).status();
    if (path == "/files/remove") return ParseText(body, kRemoveFileFields).status();
    if (path == "/nodes/approve") return ParseText(body, kApproveFields).status();
    if (path == "/nodes/approve/confirm") return ParseConfirmation(body).status();
    if (path == "/nodes/remove") return ParseNodeRemoval(body).status();
    if (path == "/tokens/new") return ParseNewToken(body).status();
    if (path == "/tokens/revoke") return ParseText(body, kRevokeTokenFields).status();
    if (path == "/aliases/new") return ParseAlias(body).status();
    if (path == "/aliases/remove") return ParseText(body, kRemoveAliasFields).status();
    if (path == "/search") return ParseText(body, kSearchFields).status();
    if (path == "/pull") return ParseText(body, kPullFields).status();
    if (path == "/drain") return ParseDrain(body).status();
    if (path == "/session") return ParseText(body, kSessionFields).status();
    return absl::UnimplementedError(path);
  };
  int bodies = 0;
  for (const auto& [path, methods] : api["paths"].items()) {
    if (!methods.contains("post")) continue;
    ++bodies;
    const Json schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"];
    const Json body = BodyOf(schema);
    EXPECT_THAT(parse(path, body.dump()), IsOk()) << path;
    for (const auto& [name, field] : schema["properties"].items()) {
      Json wrong = body;
      wrong[name] = Json::array();
      EXPECT_THAT(parse(path, wrong.dump()),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be")))
          << path << " " << name;
    }
    Json more = body;
    more["unknown"] = 1;
    EXPECT_THAT(parse(path, more.dump()), StatusIs(absl::StatusCode::kInvalidArgument)) << path;
    for (const auto& name : schema["required"]) {
      Json less = body;
      less.erase(name.get<std::string>());
      EXPECT_THAT(parse(path, less.dump()), StatusIs(absl::StatusCode::kInvalidArgument)) << path;
    }
    EXPECT_THAT(parse(path, "[]"), StatusIs(absl::StatusCode::kInvalidArgument)) << path;
  }
  EXPECT_EQ(bodies, 15);
}

TEST(ControlRequest, CarriesWhatThePlannerIsAsked) {
  const auto load = ParseLoad(R"({"model": "/m.gguf", "ctx": 512, "seqs": 2, "exclude": "attic",
      "assign": "kitchen=0-3", "cache_type_k": "q8_0", "mmap": false, "exact": true,
      "keep_alive_ms": 60000, "pinned": true})");
  ASSERT_THAT(load, IsOk());
  EXPECT_EQ(load->model, "/m.gguf");
  EXPECT_EQ(load->placement.n_ctx(), 512u);
  EXPECT_EQ(load->placement.n_seqs(), 2u);
  EXPECT_EQ(load->placement.exclude(), "attic");
  EXPECT_EQ(load->placement.assign(), "kitchen=0-3");
  EXPECT_EQ(load->placement.cache().type_k(), "q8_0");
  EXPECT_TRUE(load->placement.cache().exact());
  EXPECT_FALSE(load->use_mmap);
  EXPECT_EQ(load->keep_alive_ms, 60000);
  EXPECT_TRUE(load->pinned);
}

TEST(Approvals, TakesTheFirstAnswer) {
  Approvals approvals;
  const std::string id = approvals.Begin();
  EXPECT_THAT(approvals.Answer(id, true), IsOk());
  EXPECT_THAT(approvals.Answer(id, false), IsOk());
  EXPECT_TRUE(approvals.Wait(id));
  approvals.End(id);
  EXPECT_THAT(approvals.Answer(id, true), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace strata
