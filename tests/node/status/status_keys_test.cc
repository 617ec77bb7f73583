#include "node/status/status_keys.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(KeyReader, KnowsLettersAndSequences) {
  KeyReader keys;
  EXPECT_THAT(keys.Read("xq"), ElementsAre(Key::kQuit));
  EXPECT_THAT(keys.Read("\x03"), ElementsAre(Key::kQuit));
  EXPECT_THAT(
      keys.Read("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[F"),
      ElementsAre(Key::kUp, Key::kDown, Key::kPageUp, Key::kPageDown, Key::kHome, Key::kEnd));
}

TEST(KeyReader, SequencesMayComeInPieces) {
  KeyReader keys;
  EXPECT_THAT(keys.Read("\x1b"), IsEmpty());
  EXPECT_TRUE(keys.escape_waits());
  EXPECT_THAT(keys.Read("["), IsEmpty());
  EXPECT_FALSE(keys.escape_waits());
  EXPECT_THAT(keys.Read("6"), IsEmpty());
  EXPECT_THAT(keys.Read("~"), ElementsAre(Key::kPageDown));
}

TEST(KeyReader, EscQuitsWhenNothingFollows) {
  KeyReader keys;
  EXPECT_THAT(keys.Read("\x1b"), IsEmpty());
  EXPECT_THAT(keys.Flush(), ElementsAre(Key::kQuit));
  EXPECT_THAT(keys.Flush(), IsEmpty());
  EXPECT_THAT(keys.Read("\x1b\x1b"), ElementsAre(Key::kQuit));
}

TEST(KeyReader, SkipsUnknownSequences) {
  KeyReader keys;
  // A function key, Alt-q, the mouse, a sequence without an end: none of them quits.
  EXPECT_THAT(keys.Read("\x1b[15~\x1bq\x1b[<0;10;20M"), IsEmpty());
  EXPECT_THAT(keys.Read("\x1b[" + std::string(13, '1')), IsEmpty());
  EXPECT_THAT(keys.Read("1j"), ElementsAre(Key::kDown));
}

}  // namespace
}  // namespace strata
