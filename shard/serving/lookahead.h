// Which step will follow the one that was just done: where a stage is the whole model and all rows
// of a step were sampled, nearly always the same slots with the tokens that they got. A stage on a
// GPU begins with it while the result is on its way to the coordinator and back. Used by one
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/frame.pb.h"
#include "shard/engine/stage.h"

namespace strata {

class Lookahead {
 public:
  // Before a step runs. Whether it is the one that was guessed.
  bool Observe(const wire::Step& step);
  // How it ran: whether it was found begun, when it came and when it was computed. Returns how long
  // that took, microseconds: of a step that was done before it came, as long as the last of so many
  // rows that was not.
  int64_t Ran(const wire::Step& step, bool was_begun, int64_t came_us, int64_t computed_us);

  // After that. Whether a guess is worth its work: the last steps were as they were guessed, and
  // none that was begun has been in vain lately.
  bool Guess(const wire::Step& step, const wire::Result& result);
  // What Guess() said, until the next call.
  Stage::Batch batch() const;
  // The stage has begun with it at that time, or would not.
  void Begun(int64_t since_us);
  void Refused() { rest_ = kRestMax; }

 private:
  // One in vain costs a step. Where they come in a row, other texts come and go all the time.
  static constexpr uint32_t kRestMax = 64;

  bool known_ = false;  // the guess
  std::vector<int32_t> tokens_, positions_, slots_;
  std::vector<uint32_t> output_rows_;
  bool has_begun_ = false;
  int64_t since_us_ = 0;
  int rows_ = 0;  // of the last step that was timed, and how long it took
  int64_t took_us_ = 0;
  uint32_t in_a_row_ = 0;   // guesses that came true
  uint32_t rest_ = 0;       // steps for which nothing is begun
  uint32_t next_rest_ = 1;  // after the next one in vain
};

}  // namespace strata
