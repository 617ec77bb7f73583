#include "transport/security/cluster_certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNodeId[] = "0123456789abcdef0123456789abcdef";
constexpr char kKnownKey[] =
    "strata-key-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfh-2j9b";

ClusterAuthority Authority(absl::string_view text = kKnownKey) {
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(text);
  EXPECT_THAT(key, IsOk());
  absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(*key);
  EXPECT_THAT(authority, IsOk());
  return *std::move(authority);
}

ClusterAuthority AnotherAuthority() {
  absl::StatusOr<ClusterKey> key = ClusterKey::New();
  EXPECT_THAT(key, IsOk());
  return Authority(key->ToText().Reveal());
}

NodeCertificate Issue(const ClusterAuthority& authority) {
  absl::StatusOr<NodeCertificate> made = authority.Issue({.node_id = kNodeId});
  EXPECT_THAT(made, IsOk());
  return *std::move(made);
}

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;

X509Ptr Parse(const std::string& pem) {
  BIO* bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509Ptr certificate(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr), &X509_free);
  BIO_free(bio);
  return certificate;
}

// OpenSSL's strictest verification of a node's certificate: X509_V_OK or the error.
struct Judge {
  const ClusterAuthority& authority;
  absl::Time at = absl::Now();
  int purpose = X509_PURPOSE_SSL_SERVER;
  std::string name = NodeName(kNodeId);

  int operator()(const std::string& pem) const {
    const X509Ptr trusted = Parse(authority.certificate_pem());
    const X509Ptr certificate = Parse(pem);
    X509_STORE* store = X509_STORE_new();
    X509_STORE_add_cert(store, trusted.get());
    X509_STORE_CTX* context = X509_STORE_CTX_new();
    X509_STORE_CTX_init(context, store, certificate.get(), nullptr);
    X509_VERIFY_PARAM* parameters = X509_STORE_CTX_get0_param(context);
    X509_VERIFY_PARAM_set_flags(parameters, X509_V_FLAG_X509_STRICT);
    X509_VERIFY_PARAM_set_time(parameters, absl::ToTimeT(at));
    X509_VERIFY_PARAM_set_purpose(parameters, purpose);
    X509_VERIFY_PARAM_set1_host(parameters, name.c_str(), name.size());
    X509_verify_cert(context);
    const int result = X509_STORE_CTX_get_error(context);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    return result;
  }
};

TEST(ClusterAuthority, IsTheSameOnEveryNode) {
  const ClusterAuthority one = Authority();
  const ClusterAuthority other = Authority();
  EXPECT_EQ(one.certificate_pem(), other.certificate_pem());
  EXPECT_EQ(one.cluster_id(), "q16hby9mpe9jg5bc");
}

// The present values: other dates would do no harm, but another public key or another name would
// separate new nodes from old ones. The key is another implementation's for the private key in
// cluster_key_test.cc.
TEST(ClusterAuthority, IsTheKnownOne) {
  EXPECT_EQ(Authority().certificate_pem(), R"(-----BEGIN CERTIFICATE-----
MIIBSTCB/KADAgECAgEBMAUGAytlcDAqMSgwJgYDVQQDDB9zdHJhdGEgY2x1c3Rl
ciBxMTZoYnk5bXBlOWpnNWJjMCAXDTcwMDEwMTAwMDAwMFoYDzk5OTkxMjMxMjM1
OTU5WjAqMSgwJgYDVQQDDB9zdHJhdGEgY2x1c3RlciBxMTZoYnk5bXBlOWpnNWJj
MCowBQYDK2VwAyEAKq/c385vcHUq0Iht78LonlI2P/ZTq3/HD9td1rRCY8OjRTBD
MBIGA1UdEwEB/wQIMAYBAf8CAQAwDgYDVR0PAQH/BAQDAgIEMB0GA1UdDgQWBBSe
Ebf5wJ9oFrTlWXwxfm43Nhg4mzAFBgMrZXADQQAOptoYuHArpt+quejIzBQIjnzN
GeBv0omgXewi8KXYgf1bGSZRHLtxRrJ9g1KteNcHhizDec0yvBm9j0Gt37wI
-----END CERTIFICATE-----
)");
}

TEST(ClusterAuthority, IsAnotherForAnotherKey) {
  EXPECT_NE(Authority().certificate_pem(), AnotherAuthority().certificate_pem());
}

TEST(ClusterAuthority, MaySignCertificatesAndNothingElse) {
  const X509Ptr certificate = Parse(Authority().certificate_pem());
  EXPECT_EQ(X509_check_ca(certificate.get()), 1);
  EXPECT_EQ(X509_get_key_usage(certificate.get()), static_cast<uint32_t>(KU_KEY_CERT_SIGN));
  EXPECT_EQ(X509_get_pathlen(certificate.get()), 0);
}

TEST(NodeCertificate, IsValidForServersAndClients) {
  const ClusterAuthority authority = Authority();
  const NodeCertificate node = Issue(authority);
  EXPECT_EQ(Judge{.authority = authority}(node.certificate_pem), X509_V_OK);
  EXPECT_EQ(
      (Judge{.authority = authority, .purpose = X509_PURPOSE_SSL_CLIENT})(node.certificate_pem),
      X509_V_OK);
}

TEST(NodeCertificate, NamesItsNodeAndAMemberAndNothingElse) {
  const ClusterAuthority authority = Authority();
  const NodeCertificate node = Issue(authority);
  const auto as = [&](const std::string& name) {
    return Judge{.authority = authority, .name = name}(node.certificate_pem);
  };
  EXPECT_EQ(as(std::string(kMemberName)), X509_V_OK);
  EXPECT_EQ(as(NodeName(std::string(32, 'f'))), X509_V_ERR_HOSTNAME_MISMATCH);
  EXPECT_EQ(as("another.strata.internal"), X509_V_ERR_HOSTNAME_MISMATCH);
  EXPECT_EQ(as(kNodeId), X509_V_ERR_HOSTNAME_MISMATCH);
}

TEST(NodeCertificate, OfAnotherClusterIsRefused) {
  const ClusterAuthority authority = Authority();
  EXPECT_EQ(Judge{.authority = authority}(Issue(AnotherAuthority()).certificate_pem),
            X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY);
}

TEST(NodeCertificate, IsNoAuthority) {
  const X509Ptr certificate = Parse(Issue(Authority()).certificate_pem);
  EXPECT_EQ(X509_check_ca(certificate.get()), 0);
}

TEST(NodeCertificate, IsGoodWhateverTheClockSays) {
  const ClusterAuthority authority = Authority();
  const NodeCertificate node = Issue(authority);
  for (const char* time :
       {"1970-01-01T00:00:01Z", "2016-11-27T00:00:00Z", "2026-11-27T00:00:00Z",
        "2038-01-19T03:14:08Z", "2106-02-07T06:28:16Z", "9999-12-31T23:59:58Z"}) {
    absl::Time at;
    ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, time, &at, nullptr));
    EXPECT_EQ((Judge{.authority = authority, .at = at})(node.certificate_pem), X509_V_OK) << time;
  }
}

TEST(NodeCertificate, HasItsOwnKeyEachTime) {
  const ClusterAuthority authority = Authority();
  const NodeCertificate a = Issue(authority);
  const NodeCertificate b = Issue(authority);
  EXPECT_NE(a.private_key_pem.Reveal(), b.private_key_pem.Reveal());
  EXPECT_NE(a.certificate_pem, b.certificate_pem);
  EXPECT_THAT(a.private_key_pem.Reveal(), HasSubstr("BEGIN PRIVATE KEY"));
  EXPECT_THAT(a.certificate_pem, Not(HasSubstr("PRIVATE")));
}

TEST(NodeCertificate, IsNotMadeForAnInvalidId) {
  const ClusterAuthority authority = Authority();
  for (const std::string id : {"", "a.b", "a,DNS:evil", "*", "a\n", "ä"}) {
    EXPECT_THAT(authority.Issue({.node_id = id}), StatusIs(absl::StatusCode::kInvalidArgument))
        << id;
  }
  EXPECT_THAT(authority.Issue({.node_id = std::string(49, 'a')}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace strata
