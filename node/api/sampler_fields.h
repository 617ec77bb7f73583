// The fields of a request that say how tokens are sampled, by the names that llama.cpp and OpenAI
// have for them. Pure; no byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "node/api/field_reader.h"
#include "proto/frame.pb.h"

namespace strata {

// All fields, with their defaults where they are missing.
void ReadSampler(FieldReader* fields, wire::SamplerSettings* sampler);
// One string, or several; empty ones are passed over.
void ReadStops(FieldReader* fields, std::vector<std::string>* stops, const char* name = "stop");

}  // namespace strata
