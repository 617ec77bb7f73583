#include "coordinator/models/self_test_file.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

wire::SelfTest Result(const std::string& model, uint32_t begin, const std::string& hash = "hash") {
  wire::SelfTest test;
  test.set_model_id(model);
  test.mutable_layers()->set_begin(begin);
  test.mutable_layers()->set_end(begin + 1);
  test.set_node_id("a node");
  test.add_points()->set_hash(hash);
  return test;
}

std::string Fresh() { return testing::MakeTestFolder() + "/self_tests"; }

TEST(SelfTestFile, OutlivesItsProcessForItsOwnerAlone) {
  const std::string path = Fresh();
  {
    SelfTestFile file(path);
    file.Keep(Result("m", 0));
    file.Keep(Result("m", 1));
    file.Keep(Result("n", 0));
  }
  struct stat about;
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  SelfTestFile again(path);
  EXPECT_THAT(again.Of("m"), SizeIs(2));
  ASSERT_THAT(again.Of("n"), SizeIs(1));
  EXPECT_EQ(again.Of("n")[0].SerializeAsString(), Result("n", 0).SerializeAsString());
  EXPECT_THAT(again.Of("o"), IsEmpty());
}

TEST(SelfTestFile, ALaterResultOfTheSameLayersTakesThePlaceOfTheEarlier) {
  SelfTestFile file("");
  file.Keep(Result("m", 0, "earlier"));
  file.Keep(Result("m", 0, "later"));
  ASSERT_THAT(file.Of("m"), SizeIs(1));
  EXPECT_EQ(file.Of("m")[0].points(0).hash(), "later");
}

TEST(SelfTestFile, OneThatWasNotRunIsNotKept) {
  SelfTestFile file("");
  wire::SelfTest test = Result("m", 0);
  test.clear_points();
  file.Keep(test);
  EXPECT_THAT(file.Of("m"), IsEmpty());
}

TEST(SelfTestFile, ADamagedFileIsAsNone) {
  const std::string path = Fresh();
  {
    SelfTestFile(path).Keep(Result("m", 0));
  }
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string whole = bytes.str();
  std::vector<std::string> damaged = {"", "strata self-tests 9\n", whole.substr(0, 30),
                                      whole.substr(0, whole.size() - 1), whole + "x"};
  damaged.push_back(whole);
  damaged.back().back() ^= 1;
  for (const std::string& each : damaged) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << each;
    SelfTestFile file(path);
    EXPECT_THAT(file.Of("m"), IsEmpty());
    file.Keep(Result("m", 1));  // and goes on
    EXPECT_THAT(file.Of("m"), SizeIs(1));
  }
  EXPECT_THAT(SelfTestFile(path).Of("m"), SizeIs(1));
}

TEST(SelfTestFile, TheOldestGoWhereThereAreTooMany) {
  SelfTestFile file("");
  for (uint32_t i = 0; i <= kSelfTestsMax; ++i) file.Keep(Result("m", i));
  EXPECT_THAT(file.Of("m"), SizeIs(kSelfTestsMax));
  EXPECT_EQ(file.Of("m")[0].layers().begin(), 1u);
  file.Keep(Result("n", 0, std::string(kSelfTestsBytesMax / 2, 'x')));
  file.Keep(Result("n", 1, std::string(kSelfTestsBytesMax / 2, 'x')));
  EXPECT_THAT(file.Of("m"), IsEmpty());
  EXPECT_THAT(file.Of("n"), SizeIs(1));
}

}  // namespace
}  // namespace strata
