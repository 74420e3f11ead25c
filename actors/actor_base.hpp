#pragma once
// What all actors share: a name and a track on the timeline, handlers that leave a record and never
// let an exception out, and messages stamped with who sent them and why.
//
// Actors know each other in circles, and an actor's memory lives as long as a handle to it: each
// one overrides on_exit and lets go of its handles there, or a system could not shut down.

#include <longstraw/actors/environment.hpp>
#include <longstraw/messages/interfaces.hpp>

#include <string>
#include <type_traits>
#include <utility>

namespace longstraw::actors {

template <class Handle>
class actor_base : public messages::watching<typename Handle::base> {
 public:
  using behavior_type = typename Handle::behavior_type;

 protected:
  using parent = messages::watching<typename Handle::base>;

  actor_base(caf::actor_config& config, environment e, std::string name)
      : parent(config),
        env(std::move(e)),
        name_(std::move(name)),
        track_(env.timeline->add_track(name_)) {
    // The reason of an actor's end is the error that ended it, with its sentence: the supervisor
    // sees it unchanged.
    this->set_exception_handler([this](std::exception_ptr& thrown) -> caf::error {
      try {
        std::rethrow_exception(thrown);
      } catch (const killed_by_test&) {
        return messages::to_caf(
            error(errc::actor_lost, "actor '" + name_ + "' was killed by a test"));
      } catch (const error& cause) {
        return messages::to_caf(
            error(cause.code(), "actor '" + name_ + "' ended: " + cause.what()));
      } catch (const std::exception& cause) {
        return messages::to_caf(
            error(errc::actor_lost, "actor '" + name_ + "' ended: " + cause.what()));
      } catch (...) {
        return messages::to_caf(
            error(errc::actor_lost, "actor '" + name_ + "' ended for an unknown reason"));
      }
    });
    this->start_watching();
  }

  const std::string& actor_name() const { return name_; }
  std::uint32_t track() const { return track_; }

  /// One line of an actor's table: messages of type Message go to that member function.
  template <class Message, class Self, class Answer>
  auto on(Answer (Self::*handler)(const Message&)) {
    return [this, handler](const Message& m) -> Answer {
      auto* self = static_cast<Self*>(this);
      if constexpr (std::is_void_v<Answer>) {
        if (is_lost(messages::name_of<Message>())) return;
      } else {
        is_lost(messages::name_of<Message>());
      }
      if (!env.timeline->enabled()) return (self->*handler)(m);
      const record_on_exit record(*this, m.ctx, messages::name_of<Message>());
      return (self->*handler)(m);
    };
  }

  /// The handler of an answer to ask(): leaves a record too, and dies when a test wants it.
  template <class Answer, class F>
  auto on_answer(F handler) {
    return [this, handler = std::move(handler)](const Answer& m) mutable {
      is_lost(messages::name_of<Answer>());
      if (!env.timeline->enabled()) return handler(m);
      const record_on_exit record(*this, m.ctx, messages::name_of<Answer>());
      handler(m);
    };
  }

  /// Stamps and sends.
  template <class Destination, class Message>
  void tell(const Destination& to, Message m) {
    m.ctx = stamp();
    messages::send(this, to, std::move(m));
  }
  template <class Destination, class Message>
  void tell_urgently(const Destination& to, Message m) {
    m.ctx = stamp();
    messages::send_urgent(this, to, std::move(m));
  }
  template <class Destination, class Message>
  auto ask(const Destination& to, std::chrono::milliseconds deadline, Message m) {
    m.ctx = stamp();
    return messages::request(this, to, deadline, std::move(m));
  }
  template <class Message>
  Message stamped(Message m) {
    m.ctx = stamp();
    return m;
  }
  messages::trace_ctx stamp() {
    if (!env.timeline->enabled()) return {};
    return {env.timeline->next_span(), cause_, messages::timeline::now_ns(), track_};
  }
  /// Span of the message being handled.
  std::uint64_t cause() const { return cause_; }

  /// Handles of this actor for messages that carry one.
  template <class As>
  As self_as() {
    return caf::actor_cast<As>(this);
  }

  environment env;

 private:
  struct killed_by_test {};

  bool is_lost(const char* message) {
    if (!env.faults) return false;
    const auto verdict = env.faults->before(name_, message);
    if (verdict == message_faults::verdict::die) throw killed_by_test{};
    return verdict == message_faults::verdict::drop;
  }

  class record_on_exit {
   public:
    record_on_exit(actor_base& self, const messages::trace_ctx& ctx, const char* name)
        : self_(self) {
      record_.name = name;
      record_.track = self.track_;
      record_.from = ctx.from;
      record_.span = ctx.span;
      record_.cause = ctx.cause;
      record_.sent_ns = ctx.sent_ns;
      record_.begin_ns = messages::timeline::now_ns();
      outer_cause_ = std::exchange(self.cause_, ctx.span);
    }
    ~record_on_exit() {
      self_.cause_ = outer_cause_;
      record_.end_ns = messages::timeline::now_ns();
      self_.env.timeline->add(record_);
    }
    record_on_exit(const record_on_exit&) = delete;
    record_on_exit& operator=(const record_on_exit&) = delete;

   private:
    actor_base& self_;
    messages::timeline_record record_;
    std::uint64_t outer_cause_ = 0;
  };

  const std::string name_;
  const std::uint32_t track_;
  std::uint64_t cause_ = 0;
};

}  // namespace longstraw::actors
