//! A realm on loopback: each node a process of the program in a folder of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use wayleave_lab::netns::NetworkNamespace;

use crate::common::{Folder, eventually, free, text};

/// A process of a role.
pub(crate) struct Running {
    pub(crate) name: String,
    folder: PathBuf,
    role: &'static str,
    pub(crate) page: String,
    place: NetworkNamespace,
    child: Option<Child>,
    /// Whether it does what [`Running::order`] says: it looks for that all the time.
    takes_orders: bool,
}

impl Running {
    /// Starts `wayleave run ROLE` in a folder that has its configuration.
    pub(crate) fn start(name: &str, folder: PathBuf, role: &'static str, page: &str) -> Self {
        let mut running = Self::launch(name, folder, role, page, NetworkNamespace::Own);
        running.wait();
        running
    }

    /// The same in a network namespace; it need not answer yet.
    pub(crate) fn launch(name: &str, folder: PathBuf, role: &'static str, page: &str, place: NetworkNamespace) -> Self {
        let mut running = Self {
            name: name.to_owned(),
            folder,
            role,
            page: page.to_owned(),
            place,
            child: None,
            takes_orders: false,
        };
        running.spawn();
        running
    }

    /// Starts the process, for the first time or after a kill, and waits until it answers.
    pub(crate) fn resume(&mut self) {
        self.spawn();
        self.wait();
    }

    /// Starts the process.
    pub(crate) fn spawn(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).expect("a log");
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        command
            .args(["run", self.role, "--refuse-nobody", "--config", &format!("{}.toml", self.role)])
            .current_dir(&self.folder);
        if self.takes_orders {
            command.env("WAYLEAVE_TEST_FAULT", "order");
        }
        self.child = Some(command.stderr(log).stdin(Stdio::null()).spawn().expect("the program runs"));
    }

    /// Starts it anew so that it takes orders.
    pub(crate) fn take_orders(&mut self) {
        self.kill();
        self.takes_orders = true;
        self.spawn();
    }

    /// Orders something of `wayleave_runtime::faults`, and waits until it is done.
    pub(crate) fn order(&self, order: &str) {
        let (file, new) = (self.folder.join("order"), self.folder.join("order.new"));
        fs::write(&new, order).and_then(|()| fs::rename(&new, &file)).expect("written");
        eventually(&format!("{} does it: {order}", self.name), || !file.exists());
    }

    /// Waits until it answers.
    pub(crate) fn wait(&mut self) {
        eventually(&format!("{} starts: {}", self.name, self.log()), || {
            let ended = self.child.as_mut().expect("started").try_wait().expect("a child");
            assert!(ended.is_none(), "{} ended: {}", self.name, self.log());
            !self.show("status", &[]).is_null()
        });
    }

    pub(crate) fn show(&self, noun: &str, more: &[&str]) -> Value {
        self.json(&[&["show", noun], more].concat())
    }

    /// What a command says of the process.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = self.place.command(env!("CARGO_BIN_EXE_wayleave"));
        command.args(arguments).args(["--url", &self.page]).output().expect("the program runs")
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ask(&[arguments, &["--json"]].concat());
        if output.status.success() { serde_json::from_slice(&output.stdout).expect("JSON") } else { Value::Null }
    }

    pub(crate) fn status(&self, field: &str) -> Value {
        self.show("status", &[])[field].clone()
    }

    pub(crate) fn count(&self, field: &str) -> u64 {
        self.status(field).as_u64().unwrap_or(0)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// A count of the status page, below a group of counts.
    pub(crate) fn counted(&self, group: &str, field: &str) -> u64 {
        self.show("status", &[])[group][field].as_u64().unwrap_or(0)
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.id().to_string()]).status().expect("kill").success());
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A realm whose operator runs.
pub(crate) struct Realm {
    pub(crate) folder: Folder,
    pub(crate) operator: Running,
    /// Seconds that memberships last, if not a year.
    pub(crate) lasts: Option<u64>,
}

/// A router's neighbour: its name, what it is to the router, the link's number, and where the router's end is.
pub(crate) struct Neighbour<'a>(pub(crate) &'a str, pub(crate) &'a str, pub(crate) u16, pub(crate) &'a str);

impl Realm {
    pub(crate) fn new(name: &str) -> Self {
        let [listen, status] = [free(), free()];
        Self::at(name, &listen, &status)
    }

    /// The same with the operator's side at this address.
    pub(crate) fn at(name: &str, listen: &str, status: &str) -> Self {
        let folder = Folder::new(&format!("overlay-{name}"));
        folder.ok(&["realm", "init", "realm", "--listen", listen, "--status", status]);
        let operator = Running::start("operator", folder.0.join("realm"), "realm", status);
        Self { folder, operator, lasts: None }
    }

    /// A token for a node.
    pub(crate) fn invite(&self, arguments: &[&str]) -> String {
        let lasts = self.lasts.map(|lasts| lasts.to_string());
        let lasts: Vec<&str> = lasts.iter().flat_map(|lasts| ["--seconds", lasts.as_str()]).collect();
        let all = [&["realm", "invite"], arguments, &lasts, &["--config", "realm/realm.toml"]].concat();
        self.folder.ok(&all).trim().to_owned()
    }

    /// Where a node's files are.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub(crate) fn identity(&self, name: &str) -> String {
        let shown = self.folder.ok(&["keys", "show", &format!("{name}/identity.key"), "--json"]);
        let value: Value = serde_json::from_str(&shown).expect("JSON");
        value["public"].as_str().expect("a key").to_owned()
    }

    pub(crate) fn path_server(&self, name: &str) -> Running {
        let [listen, status] = [free(), free()];
        let token = self.invite(&[name, "--role", "path", "--address", &listen]);
        self.folder.ok(&["join", &token, "--dir", name, "--listen", &listen, "--status", &status]);
        Running::start(name, self.path(name), "path", &status)
    }

    /// A router that joined, and does not run yet. Returns its status page.
    pub(crate) fn router(&self, name: &str, consent: Option<&str>) -> String {
        let status = free();
        let token = self.invite(&[name, "--role", "router"]);
        let mut arguments = vec!["join", &token, "--dir", name, "--status", &status];
        arguments.extend(consent.into_iter().flat_map(|consent| ["--consent", consent]));
        self.folder.ok(&arguments);
        // Any router of these tests may be the last node of a path.
        self.edit(&format!("{name}/router.toml"), |text| {
            let offered = "tags_offered = [{ tag = \"40000000\", use = \"transit\" }]";
            let both = "tags_offered = [{ tag = \"40000000\", use = \"transit\" }, { tag = \"80000000\", use = \"deliver\" }]\n\
                        lifetime_minutes = 1";
            assert!(text.contains(offered));
            let format = "format = \"icing\"\n";
            assert!(text.contains(format));
            text.replace(offered, both).replace(format, &format!("{format}workers = 2\n"))
        });
        status
    }

    /// A consent server that joined, and does not run yet. Returns its status page and who it is.
    pub(crate) fn consent_server(&self, name: &str) -> (String, String) {
        let [listen, status] = [free(), free()];
        let token = self.invite(&[name, "--role", "consent"]);
        self.folder.ok(&["join", &token, "--dir", name, "--listen", &listen, "--status", &status]);
        (status, format!("{}@{listen}", self.identity(name)))
    }

    /// The server consents for this node from now on.
    pub(crate) fn serve(&self, server: &str, node: &str) {
        let section =
            format!("[[consent.node]]\nidentity = \"{}\"\ntags = \"../{node}/tags.key\"\n", self.identity(node));
        self.edit(&format!("{server}/consent.toml"), |text| format!("{text}\n{section}"));
    }

    /// The server consents for this router, which gives it its keys itself.
    pub(crate) fn entrust(&self, server: &str, node: &str) {
        let section = format!("[[consent.node]]\nidentity = \"{}\"\nentrusted = true\n", self.identity(node));
        self.edit(&format!("{server}/consent.toml"), |text| format!("{text}\n{section}"));
        self.edit(&format!("{node}/router.toml"), |text| {
            assert!(text.contains("#entrust = true"));
            text.replace("#entrust = true", "entrust = true")
        });
    }

    pub(crate) fn link(&self, name: &str, neighbours: &[Neighbour<'_>]) {
        let section = |Neighbour(node, relationship, interface, local): &Neighbour<'_>| {
            format!(
                "[[overlay.neighbour]]\nnode = \"{node}\"\nrelationship = \"{relationship}\"\ninterface = {interface}\nlocal = \"{local}\"\n"
            )
        };
        let sections: String = neighbours.iter().map(section).collect();
        self.edit(&format!("{name}/router.toml"), |text| format!("{text}\n{sections}"));
    }

    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(String) -> String) {
        let text = change(self.read(file));
        fs::write(self.path(file), text).expect("written");
    }

    pub(crate) fn start(&self, name: &str, role: &'static str, page: &str) -> Running {
        let config = format!("{name}/{role}.toml");
        let output = self.folder.run(&["check", &config]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        Running::start(name, self.path(name), role, page)
    }
}

/// a - b - c in a row, one consent server for b and one for c, one path server.
pub(crate) struct Row {
    pub(crate) realm: Realm,
    pub(crate) path_server: Running,
    pub(crate) consent: [Running; 2],
    pub(crate) nodes: [Running; 3],
}

impl Row {
    pub(crate) fn new(name: &str) -> Self {
        Self::prepared(name, |_| ())
    }

    /// The same, with configurations that `change` has changed before anything runs.
    pub(crate) fn prepared(name: &str, change: impl FnOnce(&Realm)) -> Self {
        Self::of(Realm::new(name), change)
    }

    /// The same in a realm that begins.
    pub(crate) fn of(realm: Realm, change: impl FnOnce(&Realm)) -> Self {
        let path_server = realm.path_server("paths");
        let (page_b, who_b) = realm.consent_server("consent-b");
        let (page_c, who_c) = realm.consent_server("consent-c");
        let pages = [realm.router("a", None), realm.router("b", Some(&who_b)), realm.router("c", Some(&who_c))];
        realm.serve("consent-b", "b");
        realm.serve("consent-c", "c");
        let [ab, ba, bc, cb] = [free(), free(), free(), free()];
        realm.link("a", &[Neighbour("b", "provider", 1, &ab)]);
        realm.link("b", &[Neighbour("a", "customer", 1, &ba), Neighbour("c", "customer", 2, &bc)]);
        realm.link("c", &[Neighbour("b", "provider", 1, &cb)]);
        change(&realm);
        let consent = [realm.start("consent-b", "consent", &page_b), realm.start("consent-c", "consent", &page_c)];
        let [a, b, c] = pages;
        let nodes = [realm.start("a", "router", &a), realm.start("b", "router", &b), realm.start("c", "router", &c)];
        Self { realm, path_server, consent, nodes }
    }

    /// Waits until every node knows its neighbours, and both consent servers answer.
    pub(crate) fn settled(self) -> Self {
        for node in &self.nodes {
            eventually(&format!("{} knows its neighbours: {}", node.name, node.log()), || {
                let status = node.show("status", &[]);
                status["neighbours"] == status["neighbours_known"] && status["neighbours"] != 0
            });
        }
        eventually("a finds a path to c", || !self.paths("c").is_null());
        self
    }

    /// What a finds to a host.
    pub(crate) fn paths(&self, host: &str) -> Value {
        self.nodes[0].show("paths", &["--host", host])
    }

    /// Whether every node of a's first path to a host consents.
    pub(crate) fn is_consented(&self, host: &str) -> bool {
        self.paths(host)["paths"][0]["consented_until"].is_u64()
    }
}
