#pragma once

// The same for tests.

#include "absl/status/status_matchers.h"
#include "cmake/headers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
