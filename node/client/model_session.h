// A command's session with a cluster: loads a model with progress bars, generates with it, and
// reports. Ctrl-C, SIGTERM and SIGHUP end the call in progress and all later ones. Text and JSON go
// to stdout, all else to stderr. Blocks; one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/base/interrupt.h"
#include "node/client/coordinator_client.h"
#include "node/client/generation_report.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct GenerateFlags {
  std::string prompt = "The old captain";
  uint32_t tokens_max = 80;
  float temperature = 0.4f;
  int32_t top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.0f;
  uint64_t seed = 1;
  bool ignore_eos = false;
  bool json = false;
  uint32_t n_ctx = 0;  // 0: chosen by what fits
  bool unverified = false;
  bool use_mmap = true;
  bool allow_mixed_versions = false;
  bool context_shift = false;
};

// Prints a note for people to stderr, as one line.
void PrintNote(absl::string_view note);

// A report of the model, before it generates.
GenerationReport ReportOf(const wire::ModelStatus& model);

class ModelSession {
 public:
  ModelSession() = default;
  // Gives the model back that Load() took a lease on, and waits until its memory is free; an
  // interrupt ends the process then, if it is the second one.
  ~ModelSession();

  // From here on an interrupt ends the calls and not the process, which a second one ends. Use()
  // does so, too.
  void CatchInterrupts();
  bool interrupted() const { return interrupt_.has_value() && interrupt_->requested(); }
  // An interrupt by the user outweighs the errors that it causes: kCancelled.
  absl::Status Explain(const absl::Status& status) const {
    return interrupted() ? absl::CancelledError("interrupted") : status;
  }

  // Either of these once, before all below. Connect(): errors of CoordinatorClient::Connect().
  absl::Status Connect(const ClientOptions& options);
  void Use(std::unique_ptr<CoordinatorClient> client);
  CoordinatorClient* operator->() { return client_.get(); }

  // Loads with progress bars. Errors of CoordinatorClient::LoadModel().
  absl::StatusOr<CoordinatorClient::Loaded> Load(const wire::LoadModelRequest& request);
  // Generates with the model of `report`, and writes the result. kCancelled: interrupted; else the
  // error of stdout, of the model, or of the request.
  absl::Status Generate(const GenerateFlags& options, GenerationReport report);
  // Writes the embedding of the prompt as a JSON array; with `json` in an object, with the model
  // and the prompt's tokens. Errors as of Generate().
  absl::Status Embed(const GenerateFlags& options, const GenerationReport& report);

 private:
  absl::Status WhyFailed(const std::string& model_id, const absl::Status& status);

  std::unique_ptr<CoordinatorClient> client_;
  std::atomic<CoordinatorClient*> to_cancel_ = nullptr;  // for the thread of the interrupt
  std::optional<Interrupt> interrupt_;                   // destroyed first: uses the client
};

}  // namespace strata
