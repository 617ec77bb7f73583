// The cluster as it is: nodes with their memory, links, problems, and what happened.
import { useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { call, get } from './api.js';
import { bytes, Events } from './parts.js';
import { text } from './strings.js';

const words = text.cluster;
const picture_nodes_max = 16; // more are a list alone

const rate = (bytes_per_s) => (bytes_per_s * 8 < 2e9
  ? `${((bytes_per_s * 8) / 1e6).toFixed(0)} Mbit/s` : `${((bytes_per_s * 8) / 1e9).toFixed(1)} Gbit/s`);
const milliseconds = (us) => `${(us / 1000).toFixed(2)} ms`;

// The sum of what the models have on a device.
function usage(models, node, device) {
  const sum = { weights: 0, caches: 0, compute: 0 };
  for (const model of models || []) {
    for (const stage of model.stages) {
      if (stage.node_id !== node.id || stage.device !== device.name) continue;
      sum.weights += stage.slice_bytes;
      sum.caches += stage.kv_bytes;
      sum.compute += stage.compute_bytes;
    }
  }
  return sum;
}

function MemoryBar({ node, device, models }) {
  const total = device.memory_total;
  if (!total) return null;
  const ours = usage(models, node, device);
  const used = ours.weights + ours.caches + ours.compute;
  // Weights that are mapped from a file count as free memory for the system.
  const free = Math.min(device.memory_free, Math.max(0, total - used));
  const parts = { ...ours, others: Math.max(0, total - used - free), free };
  const named = Object.entries(parts).filter(([name, n]) => n > 0 || name === 'free');
  const label = named.map(([name, n]) => `${words[name]} ${bytes(n)}`).join(', ');
  return html`
    <div class="bar" role="img" aria-label=${`${words.memory}: ${label}`}>
      ${named.map(([name, n]) => html`<span key=${name} class=${`part ${name}`} style=${{ width: `${(100 * n) / total}%` }} title=${`${words[name]} ${bytes(n)}`}></span>`)}
    </div>
    <p class="small" aria-hidden="true">${named.map(([name, n]) => html`<span key=${name} class="key"><i class=${`part ${name}`}></i>${words[name]} ${bytes(n)}</span>`)}</p>`;
}

function NodeCard({ node, isCoordinator, models, isAdmin, setNote }) {
  const [busy, setBusy] = useState('');
  const drain = async (undo) => {
    setBusy(words.draining(node.name));
    try {
      await call('/drain', { node: node.id, undo }, (type, value) => setBusy(value.note || ''));
      setNote(undo ? words.undone(node.name) : words.drained(node.name));
    } catch (error) {
      setNote(error.message);
    }
    setBusy('');
  };
  return html`<article class=${`card node ${node.state === 'alive' ? '' : 'is-away'}`} aria-label=${node.name}>
    <h2>${node.name}
      ${isCoordinator && html` <span class="tag">${words.coordinator}</span>`}
      <span class=${`state ${node.state === 'alive' ? 'good' : 'bad'}`}>${words.states[node.state] || node.state}</span>
    </h2>
    <p class="small">${node.address}${node.version && html` · ${words.version} ${node.version}`}${node.measuring && html` · ${words.measuring}`}</p>
    ${node.devices.map((device) => html`<div key=${device.name} class="device">
      <p><b>${device.name}</b> ${device.description} <span class="small">${device.problem ? words.notUsable
        : device.memory_bytes_per_s ? `${(device.memory_bytes_per_s / 1e9).toFixed(1)} GB/s ${words.bandwidth}` : words.measuring}</span></p>
      ${device.problem && html`<p class="problem">${device.problem}</p>`}
      <${MemoryBar} node=${node} device=${device} models=${models} />
    </div>`)}
    ${node.stages.length > 0 && html`<ul class="stages">${node.stages.map((stage) => html`
      <li key=${`${stage.epoch}/${stage.stage}`}>${stage.model}: ${words.layers(stage.layers[0], stage.layers[1] - 1)}, ${stage.state}</li>`)}</ul>`}
    <p class="actions">
      <a class="button" href=${`#plan?without=${encodeURIComponent(node.name)}`}>${words.without}</a>
      ${isAdmin && html`
        <button disabled=${Boolean(busy)} title=${words.drainWhat(node.name)} onClick=${() => drain(false)}>${words.drain}</button>
        <button disabled=${Boolean(busy)} onClick=${() => drain(true)}>${words.undo}</button>`}
    </p>
    ${busy && html`<p class="small" role="status">${busy}</p>`}
  </article>`;
}

// Pairs of nodes whose link is measured, in either direction.
function linksOf(cluster) {
  const links = [];
  cluster.nodes.forEach((node, i) => cluster.nodes.forEach((other, j) => {
    const link = i < j && (node.links[other.id] || other.links[node.id]);
    if (link) links.push({ i, j, from: node.name, to: other.name, ...link });
  }));
  return links;
}

// The transports by which models' stages send between two nodes, "gRPC" or "UCX posix", by the link's key.
function kindsOf(cluster) {
  const kinds = {};
  const places = new Map(); // of stages
  cluster.nodes.forEach((node, i) => node.stages.forEach((stage) => places.set(`${stage.epoch}/${stage.stage}`, i)));
  cluster.nodes.forEach((node, i) => node.stages.forEach((stage) => {
    const j = places.get(`${stage.epoch}/${(stage.stage + 1) % stage.n_stages}`);
    if (stage.link_wire && j !== undefined && j !== i) (kinds[`${Math.min(i, j)}/${Math.max(i, j)}`] ||= new Set()).add(stage.link_wire);
  }));
  return kinds;
}

// The faults, in words, with what to do.
function Doctor({ setNote }) {
  const [checks, setChecks] = useState(null);
  const [busy, setBusy] = useState(false);
  const examine = async () => {
    setBusy(true);
    try {
      setChecks((await get('/doctor')).checks);
    } catch (error) {
      setNote(error.message);
    }
    setBusy(false);
  };
  const found = (checks || []).filter((check) => check.state !== 'ok');
  return html`<section class="card" aria-labelledby="doctor"><h2 id="doctor">${words.doctor}</h2>
    <p class="small">${words.doctorWhat}</p>
    <div role="status">${checks && !found.some((check) => check.state === 'wrong') && html`<p class="good">${words.fine(checks.length)}</p>`}
      <ul class="rows">${found.map((check) => html`<li key=${`${check.id} ${check.target}`}>
        <span class=${`state ${check.state === 'wrong' ? 'bad' : ''}`}>${words.checkStates[check.state]}</span> <b>${check.target}</b> ${check.text}
        ${check.advice && html`<pre tabindex="0">${check.advice}</pre>`}</li>`)}</ul></div>
    <p class="actions"><button disabled=${busy} onClick=${examine}>${busy ? words.examining : words.examine}</button></p>
  </section>`;
}

function Picture({ cluster, links }) {
  const n = cluster.nodes.length;
  const [width, height] = [640, n < 3 ? 110 : 360];
  const at = cluster.nodes.map((_, i) => {
    const angle = (2 * Math.PI * i) / n + (n === 2 ? Math.PI : -Math.PI / 2);
    return [width / 2 + (n === 1 ? 0 : Math.cos(angle) * width * 0.32), (height - 20) / 2 + (n === 1 ? 0 : Math.sin(angle) * height * 0.36)];
  });
  const fastest = Math.max(1, ...links.map((link) => link.bytes_per_s));
  return html`<svg class="picture" viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${words.picture}>
    ${links.map((link) => {
      const [[x1, y1], [x2, y2]] = [at[link.i], at[link.j]];
      return html`<g key=${`${link.i}/${link.j}`}>
        <line x1=${x1} y1=${y1} x2=${x2} y2=${y2} stroke-width=${1 + 5 * (link.bytes_per_s / fastest)} />
        ${n <= 6 && html`<text x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 - 6} class="label">${milliseconds(link.round_trip_p50_us)}</text>`}
        <title>${`${link.from} – ${link.to}: ${milliseconds(link.round_trip_p50_us)}, ${rate(link.bytes_per_s)}`}</title>
      </g>`;
    })}
    ${cluster.nodes.map((node, i) => html`<g key=${node.id} class=${node.state === 'alive' ? 'alive' : 'away'}>
      <circle cx=${at[i][0]} cy=${at[i][1]} r=${node.id === cluster.coordinator ? 17 : 13} />
      <text x=${at[i][0]} y=${at[i][1] + 34}>${node.name.length > 18 ? `${node.name.slice(0, 17)}…` : node.name}</text>
    </g>`)}
  </svg>`;
}

export function Cluster({ cluster, models, happened, isAdmin, viewOnly, setNote }) {
  if (!cluster) return html`<p role="status">${text.loading}</p>`;
  const links = linksOf(cluster);
  const kinds = kindsOf(cluster);
  const coordinator = cluster.nodes.find((node) => node.id === cluster.coordinator);
  return html`
    <h1>${words.heading(cluster.cluster)} <span class="small">${words.nodes(cluster.nodes.length)}, ${coordinator ? words.coordinates(coordinator.name) : words.noCoordinator}</span></h1>
    ${!isAdmin && html`<p class="small">${viewOnly ? text.login.viewOnly : text.login.needAdmin}</p>`}
    ${cluster.problems.length > 0 && html`<section class="card" aria-labelledby="problems"><h2 id="problems">${words.problems}</h2>
      <ul>${cluster.problems.map((problem) => html`<li key=${problem} class="problem">${problem}</li>`)}</ul></section>`}
    ${cluster.nodes.length <= picture_nodes_max && html`<section class="card"><${Picture} cluster=${cluster} links=${links} /></section>`}
    <div class="grid">${cluster.nodes.map((node) => html`<${NodeCard} key=${node.id} node=${node} models=${models} isAdmin=${isAdmin} setNote=${setNote} isCoordinator=${node.id === cluster.coordinator} />`)}</div>
    ${cluster.nodes.length > 1 && html`<section class="card"><details open=${links.length <= 20}><summary>${words.links}</summary>
      ${links.length === 0 ? html`<p class="small">${words.unmeasured}</p>` : html`<div class="scroll"><table>
        <thead><tr><th>${words.link}</th><th>${words.roundTrip}</th><th>${words.slowest}</th><th>${words.throughput}</th><th>${words.kind}</th></tr></thead>
        <tbody>${links.map((link) => html`<tr key=${`${link.i}/${link.j}`}><td>${link.from} – ${link.to}</td><td>${milliseconds(link.round_trip_p50_us)}</td><td>${milliseconds(link.round_trip_p99_us)}</td><td>${rate(link.bytes_per_s)}</td><td>${[...(kinds[`${link.i}/${link.j}`] || [])].join(', ')}</td></tr>`)}</tbody>
      </table></div>`}</details></section>`}
    ${isAdmin && html`<${Doctor} setNote=${setNote} />`}
    <${Events} happened=${happened} />`;
}
