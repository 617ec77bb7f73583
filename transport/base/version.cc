#include "transport/base/version.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ggml.h"
#include "llama.h"

namespace strata {
namespace {

// One line for people: "protocol 1, strata 0.1.0, llama 0.7.0, ggml 0.27.0".
// A peer's strings may be anything, of any length, so each is cut.
std::string Describe(const wire::Versions& v) {
  auto brief = [](const std::string& s) { return absl::string_view(s).substr(0, 32); };
  return absl::StrCat("protocol ", v.protocol(), ", strata ", brief(v.strata()), ", llama ",
                      brief(v.llama()), ", ggml ", brief(v.ggml()));
}

}  // namespace

const wire::Versions& LocalVersions() {
  static const wire::Versions* const versions = [] {
    auto* v = new wire::Versions;
    v->set_protocol(kProtocolVersion);
    v->set_strata(STRATA_VERSION);
    v->set_llama(llama_version());
    v->set_ggml(ggml_version());
    return v;
  }();
  return *versions;
}

absl::Status CheckVersions(const wire::Versions& local, const wire::Versions& peer,
                           VersionPolicy policy) {
  if (local.protocol() != peer.protocol()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the protocols differ: one side has ", Describe(local), "; the other has ",
                     Describe(peer), "; install the same Strata on both"));
  }
  if (policy.allow_mixed) return absl::OkStatus();
  if (local.llama() != peer.llama() || local.ggml() != peer.ggml()) {
    return absl::FailedPreconditionError(
        absl::StrCat("an untested mix of versions: one side has ", Describe(local),
                     "; the other has ", Describe(peer),
                     "; install the same libllama on both, or say --allow-mixed-versions to each "
                     "'strata node' and to 'strata load' or 'run'"));
  }
  return absl::OkStatus();
}

}  // namespace strata
