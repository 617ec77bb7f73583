// Nodes that claim to have a model and send any bytes: their answers, to a node that fetches. In
// the first byte, bit 0: the model is described as it is, so that the answers behind are looked at;
// bit 1: there is a peer besides the source, which answers alike. Then answers: the method (0
// DescribeModel, 1 HashBlocks, 2 ReadBlocks, 3 ListBlocks), two bytes of length, so many bytes.
// Answers that are no message are left out: only a time limit ends such a call (weight_fetcher_test
// AnAnswerThatIsNoMessageEndsTheFetch). The fetcher takes only weights that have the hashes that
// came with them.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/weights.pb.h"
#include "shard/model/model_file.h"
#include "shard/weights/weight_cache.h"
#include "shard/weights/weight_fetcher.h"
#include "tests/fuzz/service_calls.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/raw_message.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"

namespace strata {
namespace {

constexpr uint32_t kLayers = 2;
constexpr absl::Duration kFetchMax = absl::Seconds(8);

// The messages that answer each call of a method.
using Answers = std::array<std::vector<std::string>, 4>;

class FuzzedSource final : public grpc::CallbackGenericService {
 public:
  FuzzedSource() {
    const std::string path = fuzz::FuzzFolder() + "/model.gguf";
    testing::WriteFile(path, testing::TinyLlama({.n_layer = kLayers}).Build());
    const auto model = ModelFile::Open(path);
    CHECK_OK(model);
    model_id_ = (*model)->id();
    wire::ModelPiece sizes;
    sizes.add_part_bytes((*model)->part_bytes(0));
    description_.push_back(sizes.SerializeAsString());
    for (const ModelFile::Range& range : (*model)->identity()) {
      wire::ModelPiece piece;
      piece.set_offset(range.offset);
      piece.mutable_data()->resize(range.bytes);
      CHECK_OK((*model)->Read(0, range.offset, absl::MakeSpan(*piece.mutable_data())));
      description_.push_back(piece.SerializeAsString());
    }
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &peer_port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr);
  }
  void Stop() { server_->Shutdown(DeadlineIn(absl::ZeroDuration())); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string peer_address() const { return absl::StrCat("127.0.0.1:", peer_port_); }
  const std::string& model_id() const { return model_id_; }
  const std::vector<std::string>& description() const { return description_; }

  void SetAnswers(Answers answers) {
    absl::MutexLock lock(mu_);
    answers_ = std::move(answers);
  }

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    absl::MutexLock lock(mu_);
    const std::string& method = context->method();
    const size_t at = absl::EndsWith(method, "/DescribeModel") ? 0
                      : absl::EndsWith(method, "/HashBlocks")  ? 1
                      : absl::EndsWith(method, "/ReadBlocks")  ? 2
                                                               : 3;
    return new Answering(answers_[at]);
  }

 private:
  class Answering final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Answering(std::vector<std::string> answers) : answers_(std::move(answers)) { Next(); }
    void OnWriteDone(bool) override { Next(); }
    void OnDone() override { delete this; }

   private:
    void Next() {
      if (at_ == answers_.size()) {
        Finish(grpc::Status::OK);
        return;
      }
      out_ = testing::MessageOf(answers_[at_++]);
      StartWrite(&out_);
    }

    const std::vector<std::string> answers_;
    size_t at_ = 0;
    grpc::ByteBuffer out_;
  };

  std::string model_id_;
  std::vector<std::string> description_;  // its messages
  int port_ = 0, peer_port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  Answers answers_ ABSL_GUARDED_BY(mu_);
};

FuzzedSource* TheSource() {
  static FuzzedSource* const source = [] {
    fuzz::BeQuiet();
    (void)fuzz::FuzzFolder();  // destroyed after the source
    auto* started = new FuzzedSource;
    std::atexit([] { TheSource()->Stop(); });
    return started;
  }();
  return source;
}

void Fetch(absl::string_view input) {
  Answers answers;
  const bool honest = (input[0] & 1) != 0;
  const bool with_peer = (input[0] & 2) != 0;
  input.remove_prefix(1);
  if (honest) answers[0] = TheSource()->description();
  while (input.size() >= 3) {
    const size_t method = static_cast<unsigned char>(input[0]) % answers.size();
    input.remove_prefix(1);
    const size_t size = fuzz::TakeSize(&input);
    std::string answer(input.substr(0, size));
    input.remove_prefix(answer.size());
    const bool parses = method == 0   ? wire::ModelPiece().ParseFromString(answer)
                        : method == 1 ? wire::BlockHashes().ParseFromString(answer)
                        : method == 2 ? wire::BlockChunk().ParseFromString(answer)
                                      : wire::BlockList().ParseFromString(answer);
    if (parses) answers[method].push_back(std::move(answer));
  }
  TheSource()->SetAnswers(std::move(answers));

  const std::string folder = fuzz::FuzzFolder() + "/cache";
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  auto cache = WeightCache::Open({.folder = folder, .bytes_max = 64u << 20});
  CHECK_OK(cache);
  WeightFetcher fetcher(*std::move(cache));
  absl::Notification done;
  absl::Status status;
  WeightFetcher::Callbacks callbacks;
  callbacks.progress = [](uint64_t, uint64_t) {};
  callbacks.done = [&](const absl::StatusOr<WeightFetcher::Fetched>& fetched) {
    status = fetched.status();
    done.Notify();
  };
  WeightFetcher::Request request;
  request.model_id = TheSource()->model_id();
  request.address = TheSource()->address();
  if (with_peer) request.peers = {TheSource()->peer_address()};
  request.layers = {0, kLayers};
  const auto job = fetcher.Start(std::move(request), std::move(callbacks));
  CHECK(done.WaitForNotificationWithTimeout(kFetchMax)) << "no end";
  CHECK(status.ok() || !status.message().empty()) << "no words";
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) strata::Fetch(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
