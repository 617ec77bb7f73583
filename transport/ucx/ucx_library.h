// UCX's functions, loaded with the first link over UCX, so that other processes do not load it, and
// a machine needs it only for such links. Loading takes time: UCX then rewrites mmap() and its like
// in memory (DisableUcxMemoryHooks()). Part of links over UCX (ucx_link.h).
//
// Threads: any.
#pragma once

#include <ucp/api/ucp.h>
// UCX's own headers are C and not strict.
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include "absl/status/status.h"

namespace strata {

// All functions of UCX that are called, by UCX's own names.
#define STRATA_UCX_FUNCTIONS(F)     \
  F(ucp_am_data_release)            \
  F(ucp_am_recv_data_nbx)           \
  F(ucp_am_send_nbx)                \
  F(ucp_cleanup)                    \
  F(ucp_config_modify)              \
  F(ucp_config_read)                \
  F(ucp_config_release)             \
  F(ucp_conn_request_query)         \
  F(ucp_ep_close_nbx)               \
  F(ucp_ep_create)                  \
  F(ucp_ep_flush_nbx)               \
  F(ucp_ep_query)                   \
  F(ucp_init_version)               \
  F(ucp_listener_create)            \
  F(ucp_listener_destroy)           \
  F(ucp_listener_query)             \
  F(ucp_listener_reject)            \
  F(ucp_request_check_status)       \
  F(ucp_request_free)               \
  F(ucp_worker_arm)                 \
  F(ucp_worker_create)              \
  F(ucp_worker_destroy)             \
  F(ucp_worker_get_efd)             \
  F(ucp_worker_progress)            \
  F(ucp_worker_set_am_recv_handler) \
  F(ucp_worker_signal)              \
  F(ucs_global_opts_set_value)      \
  F(ucs_log_push_handler)           \
  F(ucs_status_string)

struct UcxLibrary {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declared name takes no parentheses.
#define STRATA_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  STRATA_UCX_FUNCTIONS(STRATA_UCX_MEMBER)
#undef STRATA_UCX_MEMBER
};

// Loads UCX once; the process keeps it. kUnavailable where UCX is missing or lacks a function.
absl::Status LoadUcx();

// REQUIRES: LoadUcx() has returned OK.
const UcxLibrary& Ucx();

}  // namespace strata
