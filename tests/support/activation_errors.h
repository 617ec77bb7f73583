// Measures the errors that a type of activations causes: a model cut in three, run with it between
// the stages and with f32, on the same tokens. For a test's bound and a benchmark's table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"

namespace strata::testing {

// Over all rows of a sequence: those of its prompt, then one decode each.
struct ActivationErrors {
  double logit_max = 0;      // largest difference of a logit
  double logit_largest = 0;  // size of the largest with f32
  double kl_mean = 0;        // divergence of a row's distribution from that with f32, nats
  double kl_max = 0;
  double top1 = 0;  // part of rows whose likeliest token is the same
  size_t rows = 0;
};

// Loads the stages once. Not thread-safe.
class ActivationProbe {
 public:
  // Cut as near to its thirds as its architecture allows.
  static absl::StatusOr<std::unique_ptr<ActivationProbe>> Open(const std::string& path);
  virtual ~ActivationProbe() = default;

  virtual std::string Cuts() const = 0;  // "0-1, 2-3, 4-5"
  virtual uint32_t n_embd() const = 0;
  // Makes the tokens: a prompt from `text`, or a random one where that is empty, then `decodes`
  // tokens, always the likeliest with f32. Errors of the stages.
  virtual absl::Status Prepare(absl::string_view text, uint32_t decodes) = 0;
  // REQUIRES: Prepare() was called.
  virtual absl::StatusOr<ActivationErrors> Measure(wire::ActivationType type) = 0;
};

}  // namespace strata::testing
