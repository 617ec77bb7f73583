// The state of a model in words, for people and programs.
#pragma once

#include "proto/coordinator.pb.h"

namespace strata {

// "loading", "serving".
inline const char* ModelStateText(wire::ModelStatus::State state) {
  switch (state) {
    case wire::ModelStatus::LOADING:
      return "loading";
    case wire::ModelStatus::SERVING:
      return "serving";
    case wire::ModelStatus::MOVING:
      return "moving";
    case wire::ModelStatus::UNLOADING:
      return "unloading";
    case wire::ModelStatus::FAILED:
      return "failed";
    case wire::ModelStatus::RECOVERING:
      return "recovering";
    default:
      return "unknown";
  }
}

}  // namespace strata
