#include "node/hub/download.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/hub/hub_client.h"
#include "node/hub/part_file.h"
#include "tests/node/hub/fake_hub.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::FakeHub;
using ::strata::testing::FakeModel;
using ::strata::testing::FakeReply;
using ::strata::testing::FakeRequest;
using ::strata::testing::ServeFile;
using ::strata::testing::Sha256Of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr size_t kMiB = 1 << 20;

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() {
    options_.retry_first = absl::Milliseconds(1);
    options_.note = [this](const std::string& note) { notes_.push_back(note); };
    options_.explain = [](const WebAnswer& answer) {
      return HubError(answer, HubOptions(), {.kind = ModelSource::Kind::kUrl, .url = "the file"});
    };
  }

  DownloadFile FileAt(const FakeHub& hub, const std::string& path = "/model.gguf") const {
    return {.request = {.url = hub.url() + path}, .path = path_};
  }
  // A failure need not show megabytes.
  bool Has(const std::string& content) const {
    std::string bytes(content.size() + 1, '\0');
    std::ifstream in(path_, std::ios::binary);
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<size_t>(in.gcount()));
    return bytes == content;
  }
  std::set<std::string> Files() const {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      files.insert(entry.path().filename().string());
    }
    return files;
  }
  // Ends the download after this many bytes.
  absl::Status DownloadPart(const DownloadFile& file, uint64_t bytes) {
    std::atomic<bool> cancelled = false;
    DownloadOptions options = options_;
    options.cancelled = [&] { return cancelled.load(); };
    options.progress = [&](uint64_t done, uint64_t) {
      if (done >= bytes) cancelled = true;
    };
    return Download(file, options);
  }

  const std::string folder_ = testing::MakeTestFolder();
  const std::string path_ = folder_ + "/model.gguf";
  const std::string content_ = FakeModel(24 * kMiB);
  std::vector<std::string> notes_;
  DownloadOptions options_;
};

TEST_F(DownloadTest, ComesWholeOverSeveralConnections) {
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content_); });
  DownloadFile file = FileAt(hub);
  file.bytes = content_.size();
  file.sha256 = Sha256Of(content_);
  ASSERT_THAT(Download(file, options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_EQ(Files(), std::set<std::string>{"model.gguf"});
  EXPECT_GE(hub.requests().size(), 5);  // one looks what it is
  EXPECT_LE(hub.body_bytes(), content_.size() + kMiB);
}

TEST_F(DownloadTest, AFileThatIsHereIsNotFetched) {
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content_); });
  std::ofstream(path_) << "GGUF";
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_THAT(hub.requests(), IsEmpty());
}

TEST_F(DownloadTest, GoesOnWhereTheConnectionWasCut) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    if (request.IsForData()) reply.cut_after = kMiB;
    return reply;
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_LE(hub.body_bytes(), content_.size() + kMiB);
}

TEST_F(DownloadTest, GoesOnInAnotherRun) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    reply.each_64_kib = absl::Milliseconds(2);
    return reply;
  });
  EXPECT_THAT(DownloadPart(FileAt(hub), 6 * kMiB), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(Files(), (std::set<std::string>{"model.gguf.part", "model.gguf.part.json"}));
  const uint64_t before = hub.body_bytes();
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_LE(hub.body_bytes() - before, content_.size() - 5 * kMiB);
  EXPECT_EQ(Files(), std::set<std::string>{"model.gguf"});
}

TEST_F(DownloadTest, ADamagedStateIsAsNone) {
  const std::string content = FakeModel(kMiB);
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content); });
  for (const char* state :
       {"", "{", "[]", "{\"validator\": 1}", "{\"validator\": \"\\\"1\\\"\", \"bytes\": 1048576}",
        "{\"validator\": \"\\\"1\\\"\", \"bytes\": 1048576, \"missing\": [[5, 1]]}",
        "{\"validator\": \"\\\"1\\\"\", \"bytes\": 1048576, \"missing\": [[0, 99999999]]}"}) {
    std::filesystem::remove(path_);
    std::ofstream(path_ + ".part", std::ios::binary) << std::string(kMiB, 'x');
    std::ofstream(path_ + ".part.json") << state;
    ASSERT_THAT(Download(FileAt(hub), options_), IsOk()) << state;
    EXPECT_TRUE(Has(content)) << state;
  }
}

TEST_F(DownloadTest, AServerWithoutRangesSendsItWhole) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeRequest whole = request;
    whole.headers.erase("range");
    return ServeFile(whole, content_);
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
}

TEST_F(DownloadTest, WithoutRangesACutBeginsAnew) {
  int cuts = 2;
  const FakeHub hub([&](const FakeRequest& request) {
    FakeRequest whole = request;
    whole.headers.erase("range");
    FakeReply reply = ServeFile(whole, content_);
    if (request.Header("range").empty() && cuts-- > 0) reply.cut_after = 3 * kMiB;
    return reply;
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
}

TEST_F(DownloadTest, WaitsAsTheServerAsks) {
  int refusals = 2;
  const FakeHub hub([&](const FakeRequest& request) {
    if (refusals-- > 0) return FakeReply{.status = 429, .headers = {{"Retry-After", "1"}}};
    return ServeFile(request, content_);
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_THAT(notes_, Contains(HasSubstr("429 (too many requests)")));
  EXPECT_THAT(notes_, Contains(HasSubstr("the next attempt is in 1 s")));
}

TEST_F(DownloadTest, GivesUpAServerThatFailsAndKeepsWhatCame) {
  int data = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.IsForData() && ++data > 4) return FakeReply{.status = 503};
    FakeReply reply = ServeFile(request, content_);
    if (request.IsForData()) reply.cut_after = kMiB;
    return reply;
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("503")));
  EXPECT_EQ(Files(), (std::set<std::string>{"model.gguf.part", "model.gguf.part.json"}));
}

TEST_F(DownloadTest, AFileThatChangesHalfWayIsFetchedAnew) {
  const std::string later = FakeModel(content_.size(), /*seed=*/2);
  int data = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.IsForData()) ++data;
    const bool is_later = data > 3;
    FakeReply reply = ServeFile(request, is_later ? later : content_, is_later ? "\"2\"" : "\"1\"");
    if (!is_later && request.IsForData()) reply.cut_after = kMiB;
    return reply;
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(later));
  EXPECT_THAT(notes_, Contains(HasSubstr("changed at the server")));
}

// Servers behind one name, each with an ETag of its own for the same file.
TEST_F(DownloadTest, AFileWhoseHashIsKnownNeedsNoEtag) {
  int requests = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    return ServeFile(request, content_, absl::StrCat("\"", ++requests, "\""));
  });
  DownloadFile file = FileAt(hub);
  file.sha256 = Sha256Of(content_);
  ASSERT_THAT(Download(file, options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_LT(hub.body_bytes(), content_.size() + kMiB) << "nothing was fetched twice";
}

TEST_F(DownloadTest, AFileThatChangedBetweenRunsIsFetchedAnew) {
  std::string content = content_, etag = "\"1\"";
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content, etag);
    reply.each_64_kib = absl::Milliseconds(1);
    return reply;
  });
  EXPECT_THAT(DownloadPart(FileAt(hub), 6 * kMiB), StatusIs(absl::StatusCode::kCancelled));
  content = FakeModel(content_.size(), /*seed=*/2);
  etag = "\"2\"";
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content));
  EXPECT_THAT(notes_, Contains(HasSubstr("another one by now")));
}

TEST_F(DownloadTest, TheTokenGoesToItsOwnHostAlone) {
  const FakeHub store([&](const FakeRequest& request) { return ServeFile(request, content_); });
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{.status = 302, .headers = {{"Location", store.url() + "/signed?x=1"}}};
  });
  DownloadFile file = FileAt(hub);
  file.request.bearer = "hf_secret";
  ASSERT_THAT(Download(file, options_), IsOk());
  EXPECT_TRUE(Has(content_));
  for (const FakeRequest& request : hub.requests()) {
    EXPECT_EQ(request.Header("authorization"), "Bearer hf_secret");
  }
  ASSERT_THAT(store.requests(), Not(IsEmpty()));
  for (const FakeRequest& request : store.requests()) {
    EXPECT_EQ(request.Header("authorization"), "");
  }
  EXPECT_EQ(hub.requests().size(), 1) << "the signed address is used again";
}

TEST_F(DownloadTest, ARedirectWithinTheHostKeepsTheToken) {
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.Header("authorization") != "Bearer hf_secret") return FakeReply{.status = 401};
    if (request.path == "/model.gguf") {
      return FakeReply{.status = 307, .headers = {{"Location", "/store/model.gguf"}}};
    }
    return ServeFile(request, content_);
  });
  DownloadFile file = FileAt(hub);
  file.request.bearer = "hf_secret";
  ASSERT_THAT(Download(file, options_), IsOk());
  EXPECT_TRUE(Has(content_));
}

TEST_F(DownloadTest, AnExpiredAddressIsAskedForAgain) {
  std::atomic<int> signature = 0;
  int data = 0;
  const FakeHub store([&](const FakeRequest& request) {
    if (request.path != absl::StrCat("/signed?x=", signature.load())) {
      return FakeReply{.status = 403, .body = "Request has expired"};
    }
    FakeReply reply = ServeFile(request, content_);
    if (request.IsForData()) {
      reply.cut_after = 2 * kMiB;
      if (++data % 3 == 0) ++signature;
    }
    return reply;
  });
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{
        .status = 302,
        .headers = {{"Location", absl::StrCat(store.url(), "/signed?x=", signature.load())}}};
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
}

TEST_F(DownloadTest, APageIsNoModelAndNothingIsLeft) {
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{.headers = {{"Content-Type", "text/html"}}, .body = "<html>Log in</html>"};
  });
  EXPECT_THAT(
      Download(FileAt(hub), options_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no GGUF file but text/html")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(DownloadTest, AnEmptyFileIsNoModel) {
  for (const bool has_ranges : {true, false}) {
    const FakeHub hub([&](const FakeRequest& request) {
      return has_ranges ? ServeFile(request, "") : FakeReply();
    });
    EXPECT_THAT(Download(FileAt(hub), options_),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no GGUF file")));
    EXPECT_THAT(Files(), IsEmpty());
  }
}

TEST_F(DownloadTest, AWrongChecksumIsSaidAndNothingIsLeft) {
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content_); });
  DownloadFile file = FileAt(hub);
  file.sha256 = Sha256Of("another");
  EXPECT_THAT(Download(file, options_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(Sha256Of(content_))));
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_THAT(notes_, Contains(HasSubstr("fetched anew"))) << "once";
}

TEST_F(DownloadTest, AWrongLengthIsSaid) {
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content_); });
  DownloadFile file = FileAt(hub);
  file.bytes = content_.size() + 1;
  EXPECT_THAT(Download(file, options_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the hub says")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(DownloadTest, AnswersWithOtherRangesAreRefused) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    if (request.IsForData()) reply.headers["Content-Range"] = "bytes 7-9/25165824";
    return reply;
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another range")));
}

TEST_F(DownloadTest, SaysWhatIsMissingOnTheDiskBeforeItBegins) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    reply.headers["Content-Range"] = "bytes 0-3/1125899906842624";
    return reply;
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("are missing")));
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_EQ(hub.requests().size(), 1);
}

TEST_F(DownloadTest, OfTwoAtOnceOneFetchesAndTheOtherWaits) {
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    reply.each_64_kib = absl::Milliseconds(2);
    return reply;
  });
  std::vector<std::string> notes[2];
  std::vector<std::thread> threads;
  for (auto& mine : notes) {
    threads.emplace_back([&] {
      DownloadOptions options = options_;
      options.note = [&](const std::string& note) { mine.push_back(note); };
      EXPECT_THAT(Download(FileAt(hub), options), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Has(content_));
  EXPECT_LE(hub.body_bytes(), content_.size() + kMiB);
  EXPECT_EQ(notes[0].size() + notes[1].size(), 1);
  EXPECT_EQ(Files(), std::set<std::string>{"model.gguf"});
}

TEST_F(DownloadTest, APageInsteadOfAPartIsSaidAndWhatCameIsKept) {
  std::atomic<int> data = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.IsForData()) ++data;
    if (request.IsForData() && data > 4 && data < 40) {
      return FakeReply{.headers = {{"Content-Type", "text/html"}, {"ETag", "\"of the page\""}},
                       .body = "<html>Log in</html>"};
    }
    FakeReply reply = ServeFile(request, content_);
    if (data < 40) reply.cut_after = kMiB;
    return reply;
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("sends a page instead of the file (text/html, it begins "
                                       "with: <html>Log in</html>)"),
                             HasSubstr("log in and try again"))));
  data = 40;
  const uint64_t before = hub.body_bytes();
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_LE(hub.body_bytes() - before, content_.size() - 3 * kMiB);
}

TEST_F(DownloadTest, APageInsteadOfTheWholeFileIsNoModel) {
  int requests = 0;
  const FakeHub hub([&](const FakeRequest&) {
    return ++requests == 1 ? FakeReply{.body = content_} : FakeReply{.body = "<html>"};
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("begins with: <html>")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(DownloadTest, ARefusedPartIsAskedForAgain) {
  std::atomic<int> data = 0;
  std::atomic<bool> refuses_all = false;
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    if (!request.IsForData() || (++data % 2 == 0 && !refuses_all)) return reply;
    return FakeReply{.status = 416,
                     .headers = {{"Content-Range", absl::StrCat("bytes */", content_.size())}}};
  });
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
  std::filesystem::remove(path_);
  refuses_all = true;
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("refuses a part that the file has (416)")));
}

// Of a server without ETags.
TEST_F(DownloadTest, AFileThatShrinksOrGrowsMeanwhileIsFetchedAnew) {
  for (const size_t later : {2 * kMiB, 30 * kMiB}) {
    std::string content = content_;
    int data = 0;
    const FakeHub hub([&](const FakeRequest& request) {
      if (request.IsForData() && ++data == 3) content = FakeModel(later);
      FakeReply reply = ServeFile(request, content);
      reply.headers.erase("ETag");
      return reply;
    });
    ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
    EXPECT_TRUE(Has(content)) << later;
    EXPECT_THAT(notes_, Contains(HasSubstr("the file changed at the server; it is fetched anew")));
    std::filesystem::remove(path_);
    notes_.clear();
  }
}

TEST_F(DownloadTest, AFileThatGrowsAllTheTimeIsGivenUp) {
  std::string content = content_;
  const FakeHub hub([&](const FakeRequest& request) {
    content += "more";
    FakeReply reply = ServeFile(request, content);
    reply.headers.erase("ETag");
    return reply;
  });
  EXPECT_THAT(Download(FileAt(hub), options_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("changed at the server again")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(DownloadTest, ADiskThatFillsIsSaidAndWhatCameIsKept) {
  testing::SmallDisk disk(content_.size() + 72 * kMiB);
  if (!disk.problem().empty()) GTEST_SKIP() << "no file system of its own: " << disk.problem();
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    reply.each_64_kib = absl::Milliseconds(15);  // progress is reported before the end
    return reply;
  });
  DownloadFile file = FileAt(hub);
  file.path = disk.path() + "/model.gguf";
  DownloadOptions options = options_;
  bool is_full = false;
  options.progress = [&](uint64_t done, uint64_t) {
    if (done >= 6 * kMiB && !std::exchange(is_full, true)) disk.Fill();
  };
  EXPECT_THAT(Download(file, options),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("No space left"), HasSubstr("are still to come: make room"),
                             HasSubstr("what came is kept"))));
  EXPECT_FALSE(std::filesystem::exists(file.path));
  EXPECT_THAT(Download(file, options_), StatusIs(absl::StatusCode::kResourceExhausted));
  disk.MakeRoom();
  const uint64_t before = hub.body_bytes();
  ASSERT_THAT(Download(file, options_), IsOk());
  EXPECT_LE(hub.body_bytes() - before, content_.size() - 5 * kMiB);
  std::ifstream in(file.path, std::ios::binary);
  EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(in), {}) == content_);
}

TEST_F(DownloadTest, GoesOnWhereAKilledProcessWas) {
  // Half of each of the first four ranges, and the rest slowly, until it is killed.
  std::atomic<bool> is_killed = false;
  int data = 0;
  const FakeHub hub([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    if (!request.IsForData() || is_killed) return reply;
    if (++data <= 4) {
      reply.cut_after = 3 * kMiB;
    } else {
      reply.each_64_kib = absl::Seconds(1);
    }
    return reply;
  });
  const pid_t pulls = fork();
  if (pulls == 0) {
    DownloadOptions options = options_;
    options.save_every = absl::Milliseconds(10);
    (void)Download(FileAt(hub), options);
    _exit(0);
  }
  ASSERT_GT(pulls, 0);
  PartProgress progress;
  while (progress.bytes_here < 8 * kMiB) {
    ASSERT_EQ(waitpid(pulls, nullptr, WNOHANG), 0) << "it ended before it was killed";
    progress = ProgressOfPart(path_);
  }
  EXPECT_TRUE(progress.is_running);
  EXPECT_EQ(progress.bytes, content_.size());
  kill(pulls, SIGKILL);
  ASSERT_EQ(waitpid(pulls, nullptr, 0), pulls);
  is_killed = true;
  EXPECT_FALSE(ProgressOfPart(path_).is_running);
  std::ofstream(path_ + ".part.json.new") << "half wri";
  const uint64_t before = hub.body_bytes();
  ASSERT_THAT(Download(FileAt(hub), options_), IsOk());
  EXPECT_TRUE(Has(content_));
  EXPECT_LE(hub.body_bytes() - before, content_.size() - 6 * kMiB);
  EXPECT_EQ(Files(), std::set<std::string>{"model.gguf"});
}

TEST_F(DownloadTest, AServerThatIsNotThereIsSaid) {
  std::string url;
  {
    const FakeHub hub([&](const FakeRequest&) { return FakeReply(); });
    url = hub.url();
  }
  EXPECT_THAT(Download({.request = {.url = url}, .path = path_}, options_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("https_proxy")));
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace strata
