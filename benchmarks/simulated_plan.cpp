/* The messages of a plan over a platform of SimGrid, each begun when what it needs is over.
 *
 *   simulated_plan PLATFORM HOSTS MESSAGES
 *
 * PLATFORM has no latencies and a host "clock" of many cores, where time alone passes. MESSAGES is
 * the number of messages, then for each: the ranks of sender and receiver, its bytes, its latency
 * and when it is due in seconds, how many messages it needs, and which. It needs those to have
 * arrived, or, as -1 - index, to have left. Prints the time at which the last one has arrived.
 */
#include <algorithm>
#include <fstream>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace s4u = simgrid::s4u;

static const double OPERATIONS_PER_S = 1e9; // of the host "clock"

static s4u::ExecPtr wait(double seconds)
{
    auto *clock = s4u::Host::by_name("clock");
    return s4u::Exec::init()->set_flops_amount(seconds * OPERATIONS_PER_S)->set_host(clock);
}

int main(int argc, char **argv)
{
    s4u::Engine engine(&argc, argv);
    if (argc != 4) {
        std::cerr << "usage: simulated_plan PLATFORM HOSTS MESSAGES\n";
        return 2;
    }
    engine.load_platform(argv[1]);
    std::vector<s4u::Host *> hosts;
    std::ifstream names(argv[2]), messages(argv[3]);
    for (std::string name; names >> name;)
        hosts.push_back(s4u::Host::by_name(name));
    size_t n = 0;
    messages >> n;
    std::vector<s4u::CommPtr> leaving(n);
    std::vector<s4u::ExecPtr> arriving(n), due;
    std::vector<std::vector<long>> needs(n);
    for (size_t i = 0; i < n; i++) {
        size_t sender, receiver, n_needs;
        double bytes, latency_s, due_s;
        messages >> sender >> receiver >> bytes >> latency_s >> due_s >> n_needs;
        needs[i].resize(n_needs);
        for (auto &need : needs[i])
            messages >> need;
        leaving[i] = s4u::Comm::sendto_init(hosts.at(sender), hosts.at(receiver));
        leaving[i]->set_payload_size(bytes);
        arriving[i] = wait(latency_s);
        leaving[i]->add_successor(arriving[i]);
        if (due_s > 0) {
            due.push_back(wait(due_s));
            due.back()->add_successor(leaving[i]);
        }
    }
    if (!messages) {
        std::cerr << argv[3] << ": cut short\n";
        return 2;
    }
    for (size_t i = 0; i < n; i++)
        for (long need : needs[i]) {
            if (need >= 0)
                arriving.at(need)->add_successor(leaving[i]);
            else
                leaving.at(-1 - need)->add_successor(leaving[i]);
        }
    for (auto &timer : due)
        timer->vetoable_start();
    for (size_t i = 0; i < n; i++) {
        leaving[i]->vetoable_start();
        arriving[i]->vetoable_start();
    }
    engine.run();
    double last_s = 0;
    for (auto &arrival : arriving) {
        if (arrival->get_state() != s4u::Activity::State::FINISHED) {
            std::cerr << "a message never arrived\n";
            return 1;
        }
        last_s = std::max(last_s, arrival->get_finish_time());
    }
    std::cout << "last " << last_s << "\n";
}
