//! Per-path counters and signed reports, which show between which two nodes packets vanish.

use wayleave_crypto::secret::Seed;
use wayleave_crypto::sign::SigningKey;
use wayleave_dataplane::icing::{Loss, Report, WINDOW, closed, locate};
use wayleave_packet::icing::mint::Form;

use super::network::{LINK, TIME, at, mesh, packet_at, process_at, sender};

fn identity(node: usize) -> SigningKey {
    SigningKey::from_seed(&Seed::new([0xa0 | node as u8; 32]))
}

#[test]
fn reports_of_a_window_say_between_which_nodes_packets_vanished() {
    let order = [0, 1, 2, 3, 4];
    let mut routers = mesh(5);
    let sender = sender(&order);
    let first = (TIME >> WINDOW) + 3;
    let mut sent = 0;
    for second in TIME..TIME + 96 {
        for number in 0..10u32 {
            let mut octets = packet_at(&sender, Form::Path, number, second, b"12345678");
            let is_counted = second >> WINDOW == first;
            sent += u64::from(is_counted);
            for place in 1..order.len() {
                // In the counted window every fifth packet is lost behind node 2, and one arrives damaged at node 4.
                if is_counted && place == 3 && number % 5 == 0 {
                    break;
                }
                if is_counted && place == 4 && number == 1 && second % 16 == 3 {
                    *octets.last_mut().unwrap() ^= 1;
                }
                let from = LINK + order[place - 1] as u16;
                // Packets arrive late, and later at some nodes.
                octets = process_at(&mut routers[place], &octets, from, at(second + place as u32)).1;
            }
        }
    }
    assert!(closed(at(TIME + 96 + 31).unix) >= first);
    let mut reports: Vec<Report> = (1..5usize)
        .map(|node| {
            let report = routers[node].reports(first).next().unwrap();
            let signed = report.sign(&identity(node));
            Report::verify(&signed, &identity(node).verifying_key()).unwrap()
        })
        .collect();
    assert!(reports.iter().all(|report| report.handle == sender.handle() && report.count.octets % 8 == 0));
    assert_eq!(sent, 160);
    let counted: Vec<u64> = reports.iter().map(|report| report.count.packets).collect();
    assert_eq!(counted, [160, 160, 128, 127]);
    reports.reverse();
    let losses = [Loss { from: 2, to: 3, packets: 32 }, Loss { from: 3, to: 4, packets: 1 }];
    assert_eq!(locate(sent, &reports), losses);
    // Without node 3's report the place is known less exactly.
    reports.retain(|report| report.index != 3);
    assert_eq!(locate(sent, &reports), [Loss { from: 2, to: 4, packets: 33 }]);
    // The window in which the path became known was not counted from its beginning.
    assert!(routers[1].reports(TIME >> WINDOW).all(|report| !report.is_whole && report.count.packets > 0));
}
