// The frame that tests of links send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "proto/frame.pb.h"
#include "transport/link/frame.h"

namespace strata {

inline Frame Step(uint64_t id = 0, Payload payload = {}) {
  wire::Step step;
  step.set_step_id(id);
  return MakeFrame(FrameType::kStep, step, std::move(payload));
}

// A payload whose bytes depend on their position.
inline std::string PlacedBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

inline uint64_t StepId(const Frame& frame) {
  wire::Step step;
  EXPECT_TRUE(ParseHeader(frame, &step).ok());
  return step.step_id();
}

}  // namespace strata
