// The frame that tests of links send.
#pragma once

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "proto/frame.pb.h"
#include "transport/frame.h"

namespace strata {

inline Frame Step(uint64_t id = 0, Payload payload = {}) {
  wire::Step step;
  step.set_step_id(id);
  return MakeFrame(FrameType::kStep, step, std::move(payload));
}

inline uint64_t StepId(const Frame& frame) {
  wire::Step step;
  EXPECT_TRUE(ParseHeader(frame, &step).ok());
  return step.step_id();
}

}  // namespace strata
