//! The folder of an open-source SCION router, as `check` and a reload see it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use wayleave_config::router::RouterFile;
use wayleave_config::{Source, check};

const ROUTER: &str = "[general]\nid = \"br-a\"\n[router]\nnum_processors = 2\n";
const TOPOLOGY: &str = r#"{
  "isd_as": "1-ff00:0:110", "attributes": [], "dispatched_ports": "all",
  "border_routers": {
    "br-a": { "internal_addr": "127.0.0.1:30042", "interfaces": {
      "1": { "isd_as": "1-ff00:0:111", "link_to": "PARENT", "underlay": { "local": "127.0.0.1:50000", "remote": "127.0.0.2:50000" } },
      "2": { "isd_as": "1-ff00:0:112", "link_to": "CHILD", "underlay": { "local": "127.0.0.1:50001", "remote": "127.0.0.2:50001" } }
    } },
    "br-b": { "internal_addr": "127.0.0.3:30042", "interfaces": {
      "3": { "isd_as": "1-ff00:0:113", "link_to": "PEER", "remote_interface_id": 5 }
    } }
  },
  "control_service": { "cs": { "addr": "127.0.0.4:30252" } }
}"#;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("scion-folder-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("keys")).expect("a folder");
        let folder = Self(path);
        folder.write("router.toml", ROUTER);
        folder.write("topology.json", TOPOLOGY);
        folder.write("keys/master0.key", "AAECAwQFBgcICQoLDA0ODw==");
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(0o600)).expect("mode");
    }

    fn source(&self) -> Source {
        Source::read(&self.0).expect("a folder")
    }

    /// Its errors, without the folder's path.
    fn errors(&self) -> Vec<String> {
        let begin = format!("{}/", self.0.display());
        let errors = check(&self.source()).errors;
        errors.iter().map(|error| error.to_string().trim_start_matches(&begin).to_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_is_a_routers_configuration() {
    let folder = Folder::new("good");
    assert_eq!(folder.errors(), [""; 0]);
    let checked = check(&folder.source());
    assert_eq!(checked.role, "router");
    let file = RouterFile::parse(&folder.source()).expect("a configuration");
    assert_eq!((*file.forwarding.workers.get_ref(), file.interface.len()), (2, 3));
    let scion = file.scion.expect("SCION's section").into_inner();
    assert_eq!((scion.siblings.len(), *scion.end_host_ports.get_ref()), (1, [1, 65_535]));
    assert!(scion.bfd.is_some_and(|bfd| bfd.get_ref().siblings));
}

#[test]
fn what_is_wrong_by_this_routers_rules_has_its_place_in_the_folder() {
    let folder = Folder::new("bad");
    let own = "topology.json: border_routers.br-a.interfaces";
    for (before, after, expected) in [
        ("127.0.0.1:50001", "127.0.0.1:50000", format!("{own}.2.underlay.local: 127.0.0.1:50000 is in use")),
        ("127.0.0.1:50001", "0.0.0.0:50001", format!("{own}.2.underlay.local: 0.0.0.0:50001 is not one address")),
        ("127.0.0.2:50001", "[::1]:50001", format!("{own}.2.underlay.remote: [::1]:50001 cannot be reached")),
        ("1-ff00:0:112", "1-ff00:0:110", format!("{own}.2.isd_as: 1-ff00:0:110 is a wildcard or this AS itself")),
        ("\"1-ff00:0:110\"", "\"1-0\"", "topology.json: isd_as: 1-0 is a wildcard".to_owned()),
    ] {
        folder.write("topology.json", &TOPOLOGY.replacen(before, after, 1));
        let errors = folder.errors();
        assert!(errors.iter().any(|error| error.starts_with(&expected)), "{expected}: {errors:?}");
    }
    folder.write("topology.json", TOPOLOGY);
    folder.write("router.toml", &format!("{ROUTER}bfd.desired_min_tx_interval = \"5ms\"\n"));
    let errors = folder.errors();
    assert!(errors[0].starts_with("router.toml: router.bfd.desired_min_tx_interval: "), "{errors:?}");
    folder.write("router.toml", ROUTER);
    folder.write("keys/master0.key", "AAECAw==");
    assert!(folder.errors()[0].contains("a master key of 4 octets"), "{:?}", folder.errors());
}

#[test]
fn a_reload_is_told_from_a_restart() {
    let folder = Folder::new("reload");
    let before = folder.source();
    folder.write("topology.json", &TOPOLOGY.replace("127.0.0.2:50001", "127.0.0.2:50002"));
    let live = ["forwarding.keys", "scion", "interface"];
    assert_eq!(before.changed(&folder.source(), &live), [""; 0]);
    assert_eq!(before.changed(&folder.source(), &[]), ["interface"]);
    folder.write("router.toml", &ROUTER.replace('2', "3"));
    assert_eq!(before.changed(&folder.source(), &live), ["forwarding.workers"]);
}
