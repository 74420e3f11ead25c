#pragma once
// The only header that knows CAF's versions. It gives one spelling of what 0.17 and 1.x spell
// differently: typed signatures, sending, requests, watching other actors, start-up. Everything
// else in the project is written once.

#include <longstraw/memory/error.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#define LONGSTRAW_CAF_1 (CAF_MAJOR_VERSION >= 1)

namespace longstraw::messages {

// Typed actors: typed_actor<caf::result<Answer>(Message), ...>; an answer of void means that
// nothing is sent back.
#if LONGSTRAW_CAF_1
template <class... Signatures>
using typed_actor = caf::typed_actor<Signatures...>;
#else
namespace detail {
template <class>
struct signature;
template <class Answer, class... Message>
struct signature<caf::result<Answer>(Message...)> {
  using type = typename caf::replies_to<Message...>::template with<Answer>;
};
template <class... Message>
struct signature<caf::result<void>(Message...)> {
  using type = caf::reacts_to<Message...>;
};
}  // namespace detail
template <class... Signatures>
using typed_actor = caf::typed_actor<typename detail::signature<Signatures>::type...>;
#endif

/// One-way message from an actor.
template <class Self, class Destination, class Message>
void send(Self* self, const Destination& to, Message&& m) {
#if LONGSTRAW_CAF_1
  self->mail(std::forward<Message>(m)).send(to);
#else
  self->send(to, std::forward<Message>(m));
#endif
}

/// Overtakes the normal messages in the receiver's mailbox.
template <class Self, class Destination, class Message>
void send_urgent(Self* self, const Destination& to, Message&& m) {
#if LONGSTRAW_CAF_1
  self->mail(std::forward<Message>(m)).urgent().send(to);
#else
  self->template send<caf::message_priority::high>(to, std::forward<Message>(m));
#endif
}

template <class Self, class Destination, class Message>
void send_after(Self* self, const Destination& to, std::chrono::milliseconds delay, Message&& m) {
#if LONGSTRAW_CAF_1
  self->mail(std::forward<Message>(m)).delay(delay).send(to);
#else
  self->delayed_send(to, delay, std::forward<Message>(m));
#endif
}

/// From code that is no actor.
template <class Destination, class Message>
void send_anonymous(const Destination& to, Message&& m) {
#if LONGSTRAW_CAF_1
  caf::anon_mail(std::forward<Message>(m)).send(to);
#else
  caf::anon_send(to, std::forward<Message>(m));
#endif
}

/// A request with its deadline; use .then(handler, error_handler) on the result.
template <class Self, class Destination, class Message>
auto request(Self* self, const Destination& to, std::chrono::milliseconds deadline, Message&& m) {
#if LONGSTRAW_CAF_1
  return self->mail(std::forward<Message>(m)).request(to, deadline);
#else
  return self->request(to, deadline, std::forward<Message>(m));
#endif
}

// How our errors travel inside a caf::error: code and sentence survive, whatever the CAF version
// prints of its own.
#if LONGSTRAW_CAF_1
inline caf::error to_caf(const error& e) {
  return caf::make_error(caf::sec::runtime_error, static_cast<int>(e.code()),
                         std::string(e.what()));
}
#else
inline caf::error to_caf(const error& e) {
  return caf::make_error(caf::sec::runtime_error,
                         caf::make_message(static_cast<int>(e.code()), std::string(e.what())));
}
#endif

/// Back to code and sentence; an error that is not ours becomes errc::actor_lost with CAF's own
/// text.
inline error from_caf(caf::actor_system& system, const caf::error& e) {
#if LONGSTRAW_CAF_1
  (void)system;
  const caf::message& context = e.context();
  const std::string text = caf::to_string(e);
#else
  const caf::message& context = e.context();
  const std::string text = system.render(e);
#endif
  if (e == caf::sec::request_timeout)
    return error(errc::timed_out, "an actor did not answer in time");
  if (e == caf::sec::request_receiver_down)
    return error(errc::actor_lost, "an actor ended before it answered");
  if (e == caf::sec::runtime_error && context.match_elements<int, std::string>())
    return error(static_cast<errc>(context.get_as<int>(0)), context.get_as<std::string>(1));
  return error(errc::actor_lost, text);
}

/// Whether an error is one.
inline bool failed(const caf::error& e) {
#if LONGSTRAW_CAF_1
  return e.valid();
#else
  return static_cast<bool>(e);
#endif
}

/// Makes a handle refer to nobody, for on_exit.
template <class Handle>
void let_go(Handle& handle) {
  handle = Handle{};
}

/// Mixin: callbacks for the end of other actors, run in this actor's own turn.
template <class Base>
class watching : public Base {
 public:
  using Base::Base;
  using end_callback = std::function<void(const caf::error& reason)>;

 protected:
#if LONGSTRAW_CAF_1
  void start_watching() {}
  template <class Handle>
  void watch(const Handle& other, end_callback callback) {
    this->monitor(other, [callback](const caf::error& reason) { callback(reason); });
  }
#else
  void start_watching() {
    this->set_down_handler([this](caf::down_msg& down) {
      auto it = callbacks_.find(down.source);
      if (it == callbacks_.end()) return;
      auto callback = std::move(it->second);
      callbacks_.erase(it);
      callback(down.reason);
    });
  }
  template <class Handle>
  void watch(const Handle& other, end_callback callback) {
    callbacks_[caf::actor_cast<caf::actor_addr>(other)] = std::move(callback);
    this->monitor(other);
  }

 private:
  std::map<caf::actor_addr, end_callback> callbacks_;
#endif
};

/// The actor system's settings. Never reads a configuration file or the command line: the library
/// lives inside someone else's program.
class system_config : public caf::actor_system_config {
 public:
  explicit system_config(std::size_t scheduler_threads) {
#if LONGSTRAW_CAF_1
    set("caf.scheduler.max-threads", scheduler_threads);
    set("caf.scheduler.policy", "sharing");
#else
    set("scheduler.max-threads", scheduler_threads);
    // Idle threads of the "sharing" policy sleep on a condition variable; those of "stealing" poll,
    // which takes time from the lane and answers late.
    set("scheduler.policy", caf::atom("sharing"));
#endif
  }
};

}  // namespace longstraw::messages
