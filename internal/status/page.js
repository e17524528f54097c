"use strict";
// Reads the document every two seconds, one request at a time, and writes it as the
// server has written the page. Texts go in as text, never as markup.
(() => {
	const every = 2000, patience = 5000;
	const id = name => document.getElementById(name);

	const count = n => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
	const tenths = n => count(Math.floor(n / 10)) + "." + n % 10;
	const size = n => {
		if (n < 1024) return n + " B";
		const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
		let i = 0, unit = 1024;
		while (n / unit >= 1024 && i < units.length - 1) { unit *= 1024; i++; }
		return count(Math.floor(n / unit)) + "." + Math.floor(n % unit * 10 / unit) + " " + units[i];
	};
	const span = s => {
		const whole = Math.floor;
		if (s < 60) return Math.max(s, 0) + " s";
		if (s < 3600) return whole(s / 60) + " min";
		if (s < 86400) return whole(s / 3600) + " h " + whole(s % 3600 / 60) + " min";
		return count(whole(s / 86400)) + " d " + whole(s % 86400 / 3600) + " h";
	};
	const percent = l => l.value > 0 ? Math.floor(l.used * 100 / l.value) : 0;
	const inForce = l => l.off ? "off" : count(l.value);
	const numbered = (n, one, more) => n === 1 ? "1 " + one : count(n) + " " + more;
	const clock = t => t.slice(11, 19);
	const expires = c => {
		const day = 86400, left = c.expires_in_secs;
		if (c.not_after === null) return ["not to be had yet", "bad"];
		const date = ", " + c.not_after.slice(0, 10);
		if (left <= 0) return ["expired" + date, "bad"];
		const grade = c.source === "self_issued" ? "ok" : left < 7 * day ? "bad" : left < 21 * day ? "soon" : "ok";
		return ["in " + span(left) + date, grade];
	};

	const put = (name, text) => { const e = id(name); if (e.textContent !== text) e.textContent = text; };
	// cell is a text, a number to be set right, or a node.
	const cell = (tag, value, style) => {
		const e = document.createElement(tag);
		if (tag === "th") e.scope = "row";
		if (style) e.className = style;
		e.append(...[value].flat());
		return e;
	};
	const n = value => cell("td", value, "n");
	const rows = (name, list) => {
		const body = document.createElement("tbody");
		for (const cells of list) {
			const row = document.createElement("tr");
			row.append(cell("th", cells[0]), ...cells.slice(1));
			body.append(row);
		}
		// What has not changed stays, with whatever a reader has selected in it.
		if (body.innerHTML !== id(name).innerHTML) id(name).replaceChildren(...body.children);
	};
	const meter = l => {
		const e = document.createElement("meter");
		const used = percent(l);
		e.min = 0; e.max = 100; e.high = 80; e.value = used;
		e.setAttribute("aria-label", "used of " + l.limit);
		e.textContent = used + " %";
		return n(l.off ? "" : [e, " " + used + " %"]);
	};

	const rates = (s, counts) => {
		let before = Math.floor(Date.parse(s.started) / 1000);
		return counts.map((c, i) => {
			const at = s.history.at[i];
			if (i === 0 && at - before > s.history.step_secs) before = at - s.history.step_secs;
			const rate = Math.floor(c * 10 / Math.max(at - before, 1));
			before = at;
			return rate;
		});
	};
	const draw = (s, write, columns) => {
		const now = Math.floor(Date.parse(s.at) / 1000);
		const most = Math.max(1, ...Object.values(columns).flat());
		for (const [name, values] of Object.entries(columns)) {
			const points = values.map((v, i) => Math.min(Math.max(3600 - (now - s.history.at[i]), 0), 3600) + "," + (1000 - Math.floor(v * 960 / most)));
			id("line-" + name).setAttribute("points", points.join(" "));
			put("now-" + name, write(values.at(-1) ?? 0));
			put("most-" + name, write(Math.max(0, ...values)));
		}
	};

	const show = s => {
		const h = s.history;
		put("state", s.ready ? "ready" : "not ready: " + s.not_ready);
		id("state").className = "state " + (s.ready ? "ok" : "bad");
		put("version", s.version);
		put("uptime", span(s.uptime_secs));
		put("at", clock(s.at) + " UTC");
		put("open", count(s.connections.open));
		put("accepted-minute", count(s.connections.accepted.minute));
		put("in-flight", count(s.handshakes.in_flight));
		put("done-minute", count(s.handshakes.done.minute));
		put("in-minute", size(s.bytes.in.minute));
		put("in-hour", size(s.bytes.in.hour));
		put("out-minute", size(s.bytes.out.minute));
		put("out-hour", size(s.bytes.out.hour));

		rows("rejections", s.rejections.filter(r => r.total > 0).map(r => [r.reason, n(count(r.minute)), n(count(r.hour)), n(count(r.total))]));
		const quiet = s.rejections.filter(r => r.total === 0).map(r => r.reason);
		put("quiet-count", String(quiet.length));
		put("quiet", quiet.join(", "));

		rows("used", s.limits.filter(l => "used" in l).map(l => [l.limit, n(count(l.used)), n(inForce(l)), meter(l)]));
		rows("others", s.limits.filter(l => !("used" in l)).map(l => [l.limit, n(inForce(l))]));
		const c = s.capped;
		put("capped", c.hosts === 0 && c.sites === 0 ? "None." :
			numbered(c.hosts, "host", "hosts") + " and " + numbered(c.sites, "site", "sites") + " have as many connections as they may.");
		id("networks-hidden").hidden = c.shown;
		id("networks-table").hidden = c.networks.length === 0;
		rows("networks", c.networks.map(w => [w.network, n(count(w.hosts)), n(count(w.sites)), n(count(w.connections))]));
		id("more").hidden = c.more === 0;
		put("more", "and " + numbered(c.more, "more network", "more networks"));

		draw(s, count, {connections: h.connections});
		draw(s, v => tenths(v) + "/s", {accepted: rates(s, h.accepted), rejections: rates(s, h.rejections)});
		draw(s, v => size(Math.floor(v / 10)) + "/s", {bytes_in: rates(s, h.bytes_in), bytes_out: rates(s, h.bytes_out)});
		rows("periods", h.periods.map(p => [clock(p.from), n(count(p.connections_most)), n(count(p.accepted)), n(count(p.rejections)), n(size(p.bytes_in)), n(size(p.bytes_out))]));

		rows("upstreams", s.upstreams.flatMap(u => u.addresses.map(a => [u.name, cell("td", a.address, "long"), cell("td", a.up ? "up" : "down", a.up ? "ok" : "bad"), n(count(a.connections))])));
		rows("certificates", s.certificates.map(c => {
			const [text, grade] = expires(c);
			return [c.names.join(", "), cell("td", c.source), cell("td", text, grade)];
		}));
		rows("listeners", s.listeners.map(l => [l.name, cell("td", l.address + (l.leaving ? " (removed)" : ""), "long"), cell("td", l.protocol + ", tls: " + l.tls), n(count(l.open))]));
	};

	let paused = false, asking = false, timer = 0, lost = "";
	const wanted = () => !paused && !document.hidden;
	const look = async () => {
		clearTimeout(timer);
		if (asking || !wanted()) return;
		asking = true;
		try {
			const answer = await fetch("status", {cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(patience)});
			if (!answer.ok) throw new Error("status " + answer.status);
			show(await answer.json());
			lost = "";
		} catch {
			lost ||= "No answer since " + new Date().toISOString().slice(11, 19) + " UTC; these figures are of before. Trying on.";
		}
		put("trouble", lost);
		asking = false;
		if (wanted()) timer = setTimeout(look, every);
	};
	document.addEventListener("visibilitychange", look);
	const pause = id("pause");
	pause.hidden = false;
	pause.addEventListener("click", () => {
		paused = !paused;
		pause.textContent = paused ? "Go on" : "Pause";
		look();
	});
	timer = setTimeout(look, every);
})();
