// The fields of a request that say how tokens are sampled, and how many, by the names that
// llama.cpp and OpenAI have for them. Pure; no byte of the input is trusted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "node/api/api_request.h"
#include "node/api/field_reader.h"
#include "proto/frame.pb.h"

namespace strata {

// All fields, with their defaults where they are missing.
void ReadSampler(FieldReader* fields, wire::SamplerSettings* sampler);
// One string, or several; empty ones are passed over.
void ReadStops(FieldReader* fields, std::vector<std::string>* stops, const char* name = "stop");
// The last of the fields that is there counts. Below 0 is llama.cpp's for as many as there is room
// for.
void ReadTokensMax(FieldReader* fields, std::initializer_list<const char*> names,
                   ApiRequest* request);
// llama.cpp's fields for the context's end.
void ReadContextShift(FieldReader* fields, ApiRequest* request);
// "cache_prompt" and "cache_salt".
void ReadCacheUse(FieldReader* fields, ApiRequest* request);
// "speculate", our own: auto, off, ngram or draft; nullopt: it is not there.
std::optional<wire::Speculation> ReadSpeculation(FieldReader* fields);
// Reports the log-probability of each token, and of the `top` likeliest at its place.
void EnableLogprobs(ApiRequest* request, uint32_t top);
// OpenAI's "suffix"; an empty one is none.
void ReadSuffix(FieldReader* fields, ApiRequest* request);

}  // namespace strata
