// Amounts with their units, for people. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "shard/model/architecture.h"

namespace strata {

// "1.5 GiB", "12.3 ms", "layers 0-19", for people.
std::string BytesText(uint64_t bytes);
std::string TimeText(double seconds);
std::string LayersText(LayerRange layers);

}  // namespace strata
