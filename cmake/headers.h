#pragma once

// What most sources include, and what takes longest to read (PrecompiledHeaders.cmake). Each source
// includes what it uses all the same: preset dev is built without this.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/doctor.grpc.pb.h"
#include "proto/frame.pb.h"
#include "proto/key.grpc.pb.h"
#include "proto/node.grpc.pb.h"
#include "proto/pairing.grpc.pb.h"
#include "proto/probe.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
