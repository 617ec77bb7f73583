// Where the cluster under test is, and what its nodes say of themselves. Environment:
//   STRATA_URLS   the API's addresses, "http://127.0.0.1:7080", separated by spaces
//   STRATA_MODEL  the model's name
import OpenAI from 'openai';
import { z } from 'zod';

const { STRATA_URLS = '', STRATA_MODEL = '' } = process.env;
if (!STRATA_URLS || !STRATA_MODEL) throw new Error('STRATA_URLS and STRATA_MODEL say what is tested');

export const urls = STRATA_URLS.split(' ');
export const model = STRATA_MODEL;

// The object that tools and schemas of the tests ask for.
export const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(99) });

// Ollama's API cannot ask for a call; this server takes OpenAI's words for it.
export const forcing = (url, init) =>
  fetch(url, {
    ...init,
    body: JSON.stringify({ ...JSON.parse(init.body), tool_choice: 'required', parallel_tool_calls: false }),
  });

// The i-th node's, or the first's. Nothing is retried unless a test asks for it.
export function clientOf(url = urls[0], options = {}) {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, ...options });
}

// The sum of a metric over its labels, of the node that coordinates.
export async function metric(name) {
  for (const url of urls) {
    const text = await (await fetch(`${url}/metrics`)).text();
    const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`));
    if (lines.length > 0) {
      return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
    }
  }
  throw new Error(`no node says ${name}`);
}

// Waits for something that must come; a test's own limit ends it.
export async function eventually(condition) {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 20));
}

export const nobodyRuns = async () =>
  (await metric('strata_requests_running')) + (await metric('strata_requests_waiting')) === 0;
