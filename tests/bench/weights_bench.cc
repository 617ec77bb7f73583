// The speed of weights from one node to another, beside the speed of the link between them, by
// transport/link/link_probe.
//
//   weights_bench FILE CACHE                  both nodes in this process, over the loopback
//   weights_bench serve HOST:PORT             the node that has FILE
//   weights_bench fetch HOST:PORT FILE CACHE  the other one, elsewhere
//
// CACHE is a folder; with nothing in it everything is fetched.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "shard/model/model_file.h"
#include "shard/weights/weight_fetcher.h"
#include "shard/weights/weight_service.h"
#include "transport/link/link_probe.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

struct Server {
  std::unique_ptr<grpc::Service> probe = MakeLinkProbeService();
  WeightService weights{""};
  std::unique_ptr<grpc::Server> grpc;
  int port = 0;

  explicit Server(const std::string& listen) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort(listen, ProcessServerCredentials(), &port);
    builder.RegisterService(probe.get());
    builder.RegisterService(&weights);
    grpc = builder.BuildAndStart();
  }
};

int Fail(const absl::Status& status) {
  fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int Fetch(const std::string& address, const std::string& file, const std::string& folder) {
  grpc::ClientContext context;
  wire::ShareModelRequest request;
  request.set_path(file);
  wire::ShareModelResponse shared;
  const auto stub = wire::Weights::NewStub(MakeChannel(address));
  absl::Status status = FromGrpc(stub->ShareModel(&context, request, &shared));
  if (!status.ok()) return Fail(status);

  MeasureLinkOptions measure;
  measure.address = address;
  measure.throughput_budget = absl::Seconds(1);
  const auto link = MeasureLink(measure, [] { return true; });
  if (!link.ok()) return Fail(link.status());
  const double link_mb = static_cast<double>(link->bytes_per_s()) / 1e6;
  printf("link     %8.1f MB/s, round trip %u us\n", link_mb, link->round_trip_p50_us());

  auto cache = WeightCache::Open({.folder = folder});
  if (!cache.ok()) return Fail(cache.status());
  WeightFetcher fetcher(*cache);
  for (const char* what : {"fetched", "again"}) {
    absl::Notification done;
    absl::StatusOr<WeightFetcher::Fetched> outcome;
    absl::Time last = absl::InfinitePast();
    uint64_t bytes_done = 0;
    const absl::Time begin = absl::Now();
    fetcher.Start({.model_id = shared.model_id(), .address = address, .layers = {0, 1u}},
                  {.progress =
                       [&](uint64_t bytes, uint64_t) {
                         bytes_done = bytes;
                         last = absl::Now();
                       },
                   .done =
                       [&](absl::StatusOr<WeightFetcher::Fetched> fetched) {
                         outcome = std::move(fetched);
                         done.Notify();
                       }});
    done.WaitForNotification();
    if (!outcome.ok()) return Fail(outcome.status());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    const double to_last = absl::ToDoubleSeconds(last - begin);
    const double mb = static_cast<double>(outcome->bytes_fetched) / 1e6;
    printf(
        "%-8s %8.1f MB in %.3f s: %.1f MB/s, %.2f of the link (%.2f without the last sync); "
        "%.1f MB checked or fetched\n",
        what, mb, seconds, mb / seconds, mb / seconds / link_mb, mb / to_last / link_mb,
        static_cast<double>(bytes_done) / 1e6);
  }
  return 0;
}

int Run(int argc, char** argv) {
  const absl::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "serve" && argc == 3) {
    Server server(argv[2]);
    if (server.grpc == nullptr) return Fail(absl::UnavailableError(argv[2]));
    server.grpc->Wait();
    return 0;
  }
  if (verb == "fetch" && argc == 5) return Fetch(argv[2], argv[3], argv[4]);
  if (argc != 3) {
    fprintf(stderr, "see the top of weights_bench.cc\n");
    return 2;
  }
  Server server("127.0.0.1:0");
  return Fetch(absl::StrCat("127.0.0.1:", server.port), argv[1], argv[2]);
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Run(argc, argv); }
